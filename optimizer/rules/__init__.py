"""The rules of the planner, applied once each, in this order. A rule is a function of a plan and a context to a plan."""

from ..context import PlanContext
from ..logical import Plan, tables, undecided
from .choose_anchors import choose_anchors
from .choose_layout import choose_layout
from .hold_filters import hold_filters
from .keep_kv import keep_kv
from .merge_filters import merge_filters
from .order_joins import order_joins
from .order_predicates import order_predicates
from .push_filters import push_filters

RULES = (
    merge_filters,
    push_filters,
    choose_layout,
    order_predicates,
    hold_filters,
    order_joins,
    choose_anchors,
    keep_kv,
)


def optimize(plan: Plan, context: PlanContext) -> Plan:
    """The plan after all rules. Raises ConfigError for an option that can't be right, PromptError for an unknown relation."""
    tables(plan)
    plan = undecided(plan)
    for rule in RULES:
        plan = rule(plan, context)
    return plan
