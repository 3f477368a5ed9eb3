"""A filter below a semi, anti or outer join goes back above it where the join leaves it fewer rows at less cost."""

from collections.abc import Iterator
from dataclasses import replace

from ..context import PlanContext
from ..estimate import estimate_plan
from ..logical import AiFilter, AiJoin, AiPredicate, Plan, Project, children, nodes, with_children
from .choose_anchors import choose_anchors
from .keep_kv import keep_kv
from .order_joins import order_joins
from .push_filters import PUSHED

MOST = 8


def hold_filters(plan: Plan, context: PlanContext) -> Plan:
    """For each join that is not inner: which predicates below it are better asked above. Inner joins are the matter of
    `order_joins`.

    Each choice plans the query anew, so queries of more than `MOST` predicates are left as they are.
    """
    if sum(len(node.predicates) for node in nodes(plan) if isinstance(node, AiFilter | AiJoin)) > MOST:
        return plan
    for number in range(len(_joins(plan))):
        plan = _held(plan, number, context)
    return plan


def _joins(plan: Plan) -> list[AiJoin]:
    return [node for node in nodes(plan) if isinstance(node, AiJoin) and node.kind != "inner"]


def _held(plan: Plan, number: int, context: PlanContext) -> Plan:
    """The plan with predicates lifted above join `number`, one after the other as long as the whole becomes cheaper.

    Lifting all at once is tried as well, since predicates that share a document belong together.
    """
    join = _joins(plan)[number]
    below = [predicate for side in PUSHED[join.kind] for predicate in _liftable(getattr(join, side))]
    best, lifted = plan, []
    seconds = planned_seconds(plan, context) if below else 0.0
    candidates = [[predicate] for predicate in below] + ([below] if len(below) > 1 else [])
    while candidates:
        tried = [replaced(plan, join, _lift(join, lifted + more)) for more in candidates]
        costs = [planned_seconds(each, context) for each in tried]
        least = costs.index(min(costs))
        if costs[least] >= seconds:
            break
        best, seconds, lifted = tried[least], costs[least], lifted + candidates[least]
        candidates = [[predicate] for predicate in below if predicate not in lifted]
    return best


def replaced(plan: Plan, old: Plan, new: Plan) -> Plan:
    """The plan with one node exchanged for another."""
    if plan is old:
        return new
    return with_children(plan, tuple(replaced(child, old, new) for child in children(plan)))


def _liftable(plan: Plan) -> Iterator[AiPredicate]:
    """Predicates of filters that only inner joins, filters and Projects with their columns separate from the join above."""
    if isinstance(plan, AiFilter):
        yield from plan.predicates
    if _passable(plan):
        for child in children(plan):
            yield from (
                p for p in _liftable(child) if not isinstance(plan, Project) or set(p.used) <= set(plan.columns)
            )


def _passable(plan: Plan) -> bool:
    return isinstance(plan, AiFilter | Project) or (isinstance(plan, AiJoin) and plan.kind == "inner")


def _lift(join: AiJoin, predicates: list[AiPredicate]) -> Plan:
    """The join with these predicates above it, in the order in which they stood below."""
    inputs = {side: _without(getattr(join, side), predicates) for side in PUSHED[join.kind]}
    ordered = [p for side in inputs for p in _liftable(getattr(join, side)) if p in predicates]
    layout = next((n.layout for n in nodes(join) if isinstance(n, AiFilter | AiJoin) and n.layout), None)
    return AiFilter(tuple(ordered), replace(join, **inputs), layout=layout)


def _without(plan: Plan, predicates: list[AiPredicate]) -> Plan:
    if not _passable(plan):
        return plan
    plan = with_children(plan, tuple(_without(child, predicates) for child in children(plan)))
    if not isinstance(plan, AiFilter):
        return plan
    rest = tuple(p for p in plan.predicates if p not in predicates)
    return replace(plan, predicates=rest) if rest else plan.child


def planned_seconds(plan: Plan, context: PlanContext) -> float:
    """Of the plan after the rules that follow."""
    for rule in (order_joins, choose_anchors, keep_kv):
        plan = rule(plan, context)
    return estimate_plan(plan, context).seconds
