package org.quailspark;

import java.util.function.Function;
import scala.runtime.AbstractFunction1;

/** SparkSession => PlanRule, as SparkSessionExtensions wants it. */
public class PlanRuleBuilder extends AbstractFunction1 {
  private final Function planner;
  private final String mark;

  public PlanRuleBuilder(Function planner, String mark) {
    this.planner = planner;
    this.mark = mark;
  }

  public Object apply(Object session) {
    return new PlanRule(planner, mark, session);
  }

  /** The same test that guards the rule, for the planner's walk. */
  public boolean mentionsAi(Object plan) {
    return PlanSearch.mentionsAi((org.apache.spark.sql.catalyst.plans.QueryPlan) plan);
  }

  public boolean nestsAi(Object plan) {
    return PlanSearch.nestsAi((org.apache.spark.sql.catalyst.plans.QueryPlan) plan);
  }

  public boolean awaitsOuter(Object plan) {
    return PlanSearch.awaitsOuter((org.apache.spark.sql.catalyst.plans.QueryPlan) plan);
  }

  public boolean callsAi(Object expression) {
    return PlanSearch.callsAi((org.apache.spark.sql.catalyst.expressions.Expression) expression);
  }

  public boolean namesFiles(Object plan) {
    return PlanSearch.namesFiles((org.apache.spark.sql.catalyst.plans.QueryPlan) plan);
  }

  public boolean namesFile(Object expression) {
    return PlanSearch.namesFile((org.apache.spark.sql.catalyst.expressions.Expression) expression);
  }

  public String footers(
      org.apache.spark.sql.execution.datasources.FileIndex index,
      org.apache.hadoop.conf.Configuration conf,
      int most,
      int seconds)
      throws Exception {
    return ParquetFooters.sample(index, conf, most, seconds);
  }

  /** The plan with other expressions in place of the keys of a map, wherever they stand in its nodes. */
  public Object replaceExpressions(Object plan, java.util.Map replacements) {
    return ((org.apache.spark.sql.catalyst.plans.QueryPlan) plan)
        .transformExpressionsDown(new Replacement(replacements));
  }

  /** An expression with other children, perhaps more of them than before. */
  public Object withChildren(Object expression, Object children) {
    org.apache.spark.sql.catalyst.expressions.Expression e =
        (org.apache.spark.sql.catalyst.expressions.Expression) expression;
    Object[] fields = new Object[e.productArity()];
    for (int i = 0; i < fields.length; i++) {
      fields[i] = e.productElement(i) == e.children() ? children : e.productElement(i);
    }
    return e.makeCopy(fields);
  }

  /** Whether evaluation needs more than the row: a Python UDF or a subquery. */
  public boolean leavesTheRow(Object expression) {
    org.apache.spark.sql.catalyst.expressions.Expression e =
        (org.apache.spark.sql.catalyst.expressions.Expression) expression;
    return e.containsPattern(org.apache.spark.sql.catalyst.trees.TreePattern$.MODULE$.PYTHON_UDF())
        || e.containsPattern(org.apache.spark.sql.catalyst.trees.TreePattern$.MODULE$.PLAN_EXPRESSION());
  }
}
