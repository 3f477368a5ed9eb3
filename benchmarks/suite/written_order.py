"""The plan that the planner is compared with: filters below joins, as any engine has them, and all else as it is written."""

from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.logical import Plan
from quail_spark.optimizer.rules.choose_anchors import choose_anchors
from quail_spark.optimizer.rules.choose_layout import choose_layout
from quail_spark.optimizer.rules.keep_kv import keep_kv
from quail_spark.optimizer.rules.merge_filters import merge_filters
from quail_spark.optimizer.rules.push_filters import push_filters


def written_order(plan: Plan, context: PlanContext) -> Plan:
    """Questions and joins in the order of the text; the anchor is the table that the question names first; KV is kept."""
    for rule in (merge_filters, push_filters, choose_layout, choose_anchors, keep_kv):
        plan = rule(plan, context)
    return plan
