package org.quailspark;

import java.util.function.Function;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

/**
 * Optimizer rule that hands plans with AI calls to the planner in Python, for sessions that asked for it. The mark is a
 * setting, which sessions that Spark clones (to plan a cached frame, say) inherit and new sessions do not. Where there is
 * no model either, the planner refuses the query.
 */
public class PlanRule extends Rule {
  static final String MODEL = "spark.quail.model";

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
    if (!conf.contains(mark) && conf.contains(MODEL) || !PlanSearch.mentionsAi((QueryPlan) plan)) {
      return plan;
    }
    Object planned = planner.apply(new Object[] {session, plan});
    if (planned instanceof String) {
      throw new IllegalArgumentException((String) planned);
    }
    return (TreeNode) planned;
  }
}
