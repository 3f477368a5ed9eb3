package org.quailspark;

import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Exists;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.InputFileName;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.DomainJoin;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;
import scala.collection.Iterator;

/**
 * Optimizer rule that hands plans with AI calls to the planner in Python, for sessions that asked for it. The mark is a
 * setting, which sessions that Spark clones (to plan a cached frame, say) inherit and new sessions do not. Where there is
 * no model either, the planner refuses the query.
 */
public class PlanRule extends Rule {
  private static final String MODEL = "spark.quail.model";

  private final Function planner;
  private final String mark;
  private final Object session;

  public PlanRule(Function planner, String mark, Object session) {
    this.planner = planner;
    this.mark = mark;
    this.session = session;
  }

  public String ruleName() {
    return "quail-spark: plan AI operators";
  }

  public TreeNode apply(TreeNode plan) {
    SQLConf conf = SQLConf$.MODULE$.get();
    if (!conf.contains(mark) && conf.contains(MODEL) || !mentionsAi((QueryPlan) plan)) {
      return plan;
    }
    Object planned = planner.apply(new Object[] {session, plan});
    if (planned instanceof String) {
      throw new IllegalArgumentException((String) planned);
    }
    return (TreeNode) planned;
  }

  /** Whether an AI call stands in this plan or below; no Python is called. */
  public static boolean mentionsAi(QueryPlan plan) {
    if (!plan.containsPattern(TreePattern$.MODULE$.PYTHON_UDF())) {
      return false;
    }
    for (Iterator it = plan.expressions().iterator(); it.hasNext(); ) {
      Expression expression = (Expression) it.next();
      if (callsAi(expression) || nestsAi(expression)) {
        return true;
      }
    }
    for (Iterator it = plan.children().iterator(); it.hasNext(); ) {
      if (mentionsAi((QueryPlan) it.next())) {
        return true;
      }
    }
    return false;
  }

  /**
   * Whether a subquery's plan still has a DomainJoin, which stands for the outer query's values until Spark rewrites it to a
   * join in the outer query's plan.
   */
  public static boolean awaitsOuter(QueryPlan plan) {
    if (plan instanceof DomainJoin) {
      return true;
    }
    for (Iterator it = plan.children().iterator(); it.hasNext(); ) {
      if (awaitsOuter((QueryPlan) it.next())) {
        return true;
      }
    }
    return false;
  }

  /**
   * Whether an EXISTS or IN in this plan or below has an AI call among its values or correlated conditions, or in a plan that
   * awaits the outer query's.
   */
  public static boolean nestsAi(QueryPlan plan) {
    if (!plan.containsPattern(TreePattern$.MODULE$.PYTHON_UDF())) {
      return false;
    }
    for (Iterator it = plan.expressions().iterator(); it.hasNext(); ) {
      if (nestsAi((Expression) it.next())) {
        return true;
      }
    }
    for (Iterator it = plan.children().iterator(); it.hasNext(); ) {
      if (nestsAi((QueryPlan) it.next())) {
        return true;
      }
    }
    return false;
  }

  private static boolean nestsAi(Expression expression) {
    if (expression instanceof Exists || expression instanceof InSubquery) {
      Object subquery = expression instanceof Exists ? expression : ((InSubquery) expression).query();
      QueryPlan plan = (QueryPlan) ((SubqueryExpression) subquery).plan();
      return callsAi(expression) || (awaitsOuter(plan) && mentionsAi(plan));
    }
    for (Iterator it = expression.children().iterator(); it.hasNext(); ) {
      if (nestsAi((Expression) it.next())) {
        return true;
      }
    }
    return false;
  }

  /** Whether an AI call stands in this expression. */
  public static boolean callsAi(Expression expression) {
    if (!expression.containsPattern(TreePattern$.MODULE$.PYTHON_UDF())) {
      return false;
    }
    if (expression instanceof PythonUDF && ((PythonUDF) expression).name().equals("ai_if")) {
      return true;
    }
    for (Iterator it = expression.children().iterator(); it.hasNext(); ) {
      if (callsAi((Expression) it.next())) {
        return true;
      }
    }
    return false;
  }

  /** Whether `input_file_name()` stands in this plan or below. */
  public static boolean namesFiles(QueryPlan plan) {
    for (Iterator it = plan.expressions().iterator(); it.hasNext(); ) {
      if (namesFile((Expression) it.next())) {
        return true;
      }
    }
    for (Iterator it = plan.children().iterator(); it.hasNext(); ) {
      if (namesFiles((QueryPlan) it.next())) {
        return true;
      }
    }
    return false;
  }

  /** Whether `input_file_name()` stands in this expression. */
  public static boolean namesFile(Expression expression) {
    if (expression instanceof InputFileName) {
      return true;
    }
    for (Iterator it = expression.children().iterator(); it.hasNext(); ) {
      if (namesFile((Expression) it.next())) {
        return true;
      }
    }
    return false;
  }
}
