package org.quailspark;

import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import scala.collection.Iterator;

/** Optimizer rule that hands plans with AI calls to the planner in Python, for sessions that asked for it. */
public class PlanRule extends Rule {
  private final Function planner;
  private final Set sessions;
  private final Object session;

  public PlanRule(Function planner, Set sessions, Object session) {
    this.planner = planner;
    this.sessions = sessions;
    this.session = session;
  }

  public String ruleName() {
    return "quail-spark: plan AI operators";
  }

  public TreeNode apply(TreeNode plan) {
    if (!sessions.contains(session) || !mentionsAi((QueryPlan) plan)) {
      return plan;
    }
    return (TreeNode) planner.apply(new Object[] {session, plan});
  }

  /** Whether an AI call stands in this plan or below; no Python is called. */
  public static boolean mentionsAi(QueryPlan plan) {
    if (!plan.containsPattern(TreePattern$.MODULE$.PYTHON_UDF())) {
      return false;
    }
    for (Iterator it = plan.expressions().iterator(); it.hasNext(); ) {
      if (callsAi((Expression) it.next())) {
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
}
