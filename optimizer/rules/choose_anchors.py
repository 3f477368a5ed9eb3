"""Anchors that the kind of a join fixes: every row of the anchor's side must come out, with a partner or without one."""

from dataclasses import replace

from ..context import PlanContext
from ..errors import ConfigError
from ..logical import AiFilter, AiJoin, Plan, children, relations, with_children


def choose_anchors(plan: Plan, context: PlanContext) -> Plan:
    """Left, semi, anti and full joins read the left side's rows as anchors, right joins the right side's.

    Filters read the text first that the question names first, or the option `anchor`. Inner joins are the matter of
    `order_joins`. Raises ConfigError when the option `anchor` asks for the other side.
    """
    plan = with_children(plan, tuple(choose_anchors(child, context) for child in children(plan)))
    if isinstance(plan, AiFilter) and not plan.anchors:
        hinted = [predicate.hinted() for predicate in plan.predicates]
        return replace(
            plan,
            anchors=tuple(h[0].relation if h else p.relations[0] for h, p in zip(hinted, plan.predicates, strict=True)),
        )
    if not isinstance(plan, AiJoin) or not plan.predicates or plan.anchor:
        return plan
    side = relations(plan.right if plan.kind == "right" else plan.left)
    for predicate in plan.predicates:
        if (hint := predicate.hinted()) and hint[0].relation not in side:
            raise ConfigError(
                f"option anchor is {predicate.anchor!r} of the question {predicate.words!r} in a {plan.kind} join; "
                f"accepted there: {', '.join(sorted(side & set(predicate.relations)))}"
            )
    named = [r for r in plan.predicates[0].relations if r in side]
    if not named:
        raise ConfigError(
            f"the question {plan.predicates[0].words!r} of a {plan.kind} join reads nothing of its "
            f"{'right' if plan.kind == 'right' else 'left'} side; accepted: a column of {', '.join(sorted(side))}"
        )
    return replace(plan, anchor=named[0])
