"""A filter below a semi, anti or outer join goes back above it where the join leaves it fewer rows at less cost."""

from dataclasses import replace

from ..context import PlanContext
from ..estimate import estimate_plan
from ..logical import AiFilter, AiJoin, Plan, children, with_children
from .choose_anchors import choose_anchors
from .keep_kv import keep_kv
from .order_joins import order_joins
from .push_filters import PUSHED


def hold_filters(plan: Plan, context: PlanContext) -> Plan:
    """For each join that is not inner: how many of the last predicates below it are better asked above.

    Inner joins are the matter of `order_joins`.
    """
    plan = with_children(plan, tuple(hold_filters(child, context) for child in children(plan)))
    if not isinstance(plan, AiJoin) or plan.kind == "inner":
        return plan
    return min(_variants(plan), key=lambda variant: _seconds(variant, context))


def _variants(join: AiJoin) -> list[Plan]:
    found: list[Plan] = [join]
    for side in PUSHED[join.kind]:
        below = getattr(join, side)
        if not isinstance(below, AiFilter):
            continue
        for stays in reversed(range(len(below.predicates))):
            inner = replace(below, predicates=below.predicates[:stays]) if stays else below.child
            found.append(AiFilter(below.predicates[stays:], replace(join, **{side: inner}), layout=below.layout))
    return found


def _seconds(plan: Plan, context: PlanContext) -> float:
    for rule in (order_joins, choose_anchors, keep_kv):
        plan = rule(plan, context)
    return estimate_plan(plan, context).seconds
