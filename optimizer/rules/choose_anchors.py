"""Anchors that the kind of a join fixes: every row of the anchor's side must come out, with a partner or without one."""

from dataclasses import replace

from ..context import PlanContext
from ..logical import AiFilter, AiJoin, AiPredicate, Plan, children, relations, with_children


def choose_anchors(plan: Plan, context: PlanContext) -> Plan:
    """Left, semi, anti and full joins read the left side's rows as anchors, right joins the right side's, whatever the option
    `anchor` says (EXPLAIN tells).

    Filters read the text first that the option names, else the question. Inner joins are the matter of `order_joins`.
    """
    plan = with_children(plan, tuple(choose_anchors(child, context) for child in children(plan)))
    if isinstance(plan, AiFilter) and not plan.anchors:
        return replace(plan, anchors=tuple(map(_first, plan.predicates)))
    if not isinstance(plan, AiJoin) or not plan.predicates or plan.anchor:
        return plan
    if plan.kind == "inner":
        return replace(plan, anchor=_first(plan.predicates[0]))
    side = relations(plan.right if plan.kind == "right" else plan.left)
    read = [r for predicate in plan.predicates for r in predicate.relations if r in side]
    return replace(plan, anchor=read[0] if read else min(side))


def _first(predicate: AiPredicate) -> str:
    hinted = predicate.hinted()
    return hinted[0].relation if hinted else predicate.relations[0]
