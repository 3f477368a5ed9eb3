"""Filters on top of each other become one, which keeps a document's KV from one question to the next."""

from dataclasses import replace

from ..context import PlanContext
from ..logical import AiFilter, Plan, children, with_children


def merge_filters(plan: Plan, context: PlanContext) -> Plan:
    """AiFilter(a, AiFilter(b, x)) → AiFilter(b AND a, x). A question that stands there twice is asked once."""
    plan = with_children(plan, tuple(merge_filters(child, context) for child in children(plan)))
    if not isinstance(plan, AiFilter) or not isinstance(plan.child, AiFilter):
        return plan
    below = plan.child
    new = tuple(p for p in plan.predicates if p not in below.predicates)
    return replace(below, predicates=below.predicates + new)
