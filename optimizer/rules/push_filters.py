"""Questions about one input of a join are asked below it, those about both become part of it."""

from dataclasses import replace

from ..context import PlanContext
from ..logical import AiFilter, AiJoin, AiPredicate, Plan, Project, children, relations, with_children

# Sides of a join whose rows a filter above may drop before the join: those that get no NULLs for want of a partner.
PUSHED = {
    "inner": ("left", "right"),
    "left": ("left",),
    "right": ("right",),
    "semi": ("left",),
    "anti": ("left",),
    "full": (),
}


def push_filters(plan: Plan, context: PlanContext) -> Plan:
    """Each predicate of a filter as deep as it may go. `order_joins` holds one back again where that is cheaper."""
    if isinstance(plan, AiFilter):
        below, rest = plan.child, []
        for predicate in plan.predicates:
            pushed = _push(predicate, below)
            if pushed is None:
                rest.append(predicate)
            else:
                below = pushed
        below = push_filters(below, context)
        return replace(plan, predicates=tuple(rest), child=below) if rest else below
    return with_children(plan, tuple(push_filters(child, context) for child in children(plan)))


def _push(predicate: AiPredicate, plan: Plan) -> Plan | None:
    """The plan with the predicate inside; None: it has to stay above."""
    if isinstance(plan, Project):
        inside = _push(predicate, plan.child) or AiFilter((predicate,), plan.child)
        return replace(plan, child=inside)
    if isinstance(plan, AiFilter):
        inside = _push(predicate, plan.child)
        return replace(plan, child=inside) if inside else replace(plan, predicates=(*plan.predicates, predicate))
    if not isinstance(plan, AiJoin):
        return None
    for side in PUSHED[plan.kind]:
        below = getattr(plan, side)
        if set(predicate.relations) <= relations(below):
            return replace(plan, **{side: _push(predicate, below) or AiFilter((predicate,), below)})
    both = relations(plan.left) | relations(plan.right)
    if plan.kind == "inner" and set(predicate.relations) <= both:
        return replace(plan, predicates=(*plan.predicates, predicate))
    return None
