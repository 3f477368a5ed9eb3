package org.quailspark;

import org.apache.spark.sql.catalyst.expressions.Exists;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.InSubquery;
import org.apache.spark.sql.catalyst.expressions.InputFileName;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.plans.logical.DomainJoin;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import scala.runtime.AbstractFunction1;

/** What stands in plans and expressions. No Python is called. */
public class PlanSearch {
  /** Whether an AI call stands in this expression. */
  public static boolean callsAi(Expression expression) {
    return hasUdf(expression) && expression.exists(IS_AI_CALL);
  }

  /** Whether an AI call stands in this plan or below. */
  public static boolean mentionsAi(QueryPlan plan) {
    return hasUdf(plan) && plan.exists(new OneOfItsExpressions(MENTIONS_AI));
  }

  /**
   * Whether an EXISTS or IN in this plan or below has an AI call among its values or correlated conditions, or in a plan that
   * awaits the outer query's.
   */
  public static boolean nestsAi(QueryPlan plan) {
    return hasUdf(plan) && plan.exists(new OneOfItsExpressions(NESTS_AI));
  }

  /**
   * Whether a subquery's plan still has a DomainJoin, which stands for the outer query's values until Spark rewrites it to a
   * join in the outer query's plan.
   */
  public static boolean awaitsOuter(QueryPlan plan) {
    return plan.exists(IS_DOMAIN_JOIN);
  }

  /** Whether `input_file_name()` stands in this expression. */
  public static boolean namesFile(Expression expression) {
    return expression.exists(IS_FILE_NAME);
  }

  /** Whether `input_file_name()` stands in this plan or below. */
  public static boolean namesFiles(QueryPlan plan) {
    return plan.exists(new OneOfItsExpressions(NAMES_FILE));
  }

  private static boolean hasUdf(TreeNode node) {
    return node.containsPattern(TreePattern$.MODULE$.PYTHON_UDF());
  }

  private abstract static class Test extends AbstractFunction1 {
    abstract boolean holds(Object node);

    public Object apply(Object node) {
      return Boolean.valueOf(holds(node));
    }
  }

  /** Of a plan's own expressions; `test` looks into them. */
  private static class OneOfItsExpressions extends Test {
    private final Test test;

    OneOfItsExpressions(Test test) {
      this.test = test;
    }

    boolean holds(Object plan) {
      return ((QueryPlan) plan).expressions().exists(test);
    }
  }

  private static final Test IS_AI_CALL =
      new Test() {
        boolean holds(Object node) {
          return node instanceof PythonUDF && ((PythonUDF) node).name().equals("ai_if");
        }
      };

  private static final Test IS_NESTING =
      new Test() {
        boolean holds(Object node) {
          if (!(node instanceof Exists || node instanceof InSubquery)) {
            return false;
          }
          Object subquery = node instanceof Exists ? node : ((InSubquery) node).query();
          QueryPlan plan = (QueryPlan) ((SubqueryExpression) subquery).plan();
          return callsAi((Expression) node) || (awaitsOuter(plan) && mentionsAi(plan));
        }
      };

  private static final Test NESTS_AI =
      new Test() {
        boolean holds(Object expression) {
          return ((Expression) expression).exists(IS_NESTING);
        }
      };

  private static final Test MENTIONS_AI =
      new Test() {
        boolean holds(Object expression) {
          return callsAi((Expression) expression) || NESTS_AI.holds(expression);
        }
      };

  private static final Test IS_DOMAIN_JOIN =
      new Test() {
        boolean holds(Object plan) {
          return plan instanceof DomainJoin;
        }
      };

  private static final Test IS_FILE_NAME =
      new Test() {
        boolean holds(Object node) {
          return node instanceof InputFileName;
        }
      };

  private static final Test NAMES_FILE =
      new Test() {
        boolean holds(Object expression) {
          return namesFile((Expression) expression);
        }
      };
}
