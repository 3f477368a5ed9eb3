"""Expected rows of a plan, relation by relation."""

from collections.abc import Mapping

from .cardinality import Cardinality
from .context import PlanContext
from .logical import AiFilter, AiJoin, Plan, Project, Relation, TextRef, relations
from .statistics import TableStats

Tables = Mapping[str, TableStats]


def equality_share(left: TextRef, right: TextRef, tables: Tables) -> float:
    """Share of pairs with equal keys: one over the distinct values of the side that has more of them (System R).

    Of a column without that statistic all values are taken as distinct.
    """
    most = max(tables[ref.relation].distinct.get(ref.column, tables[ref.relation].rows.value) for ref in (left, right))
    return 1 / max(1.0, most)


def plan_rows(plan: Plan, context: PlanContext, tables: Tables) -> Cardinality:
    """What comes out of a plan."""
    if isinstance(plan, Relation):
        return Cardinality({plan.name: plan.stats.rows.value})
    if isinstance(plan, Project):
        return plan_rows(plan.child, context, tables)
    if isinstance(plan, AiFilter):
        rows = plan_rows(plan.child, context, tables)
        for predicate in plan.predicates:
            rows = rows.asked(predicate.relations, context.rate(predicate).value)
        return rows
    left, right = (plan_rows(side, context, tables) for side in (plan.left, plan.right))
    joined = before_predicates(plan, left | right, tables)
    for predicate in plan.predicates:
        joined = joined.asked(predicate.relations, context.rate(predicate).value)
    return after_join(plan, left, joined, tables)


def before_predicates(join: AiJoin, both: Cardinality, tables: Tables) -> Cardinality:
    """Rows that meet the keys of a join."""
    for left, right in join.keys:
        both = both.equal(left.relation, right.relation, equality_share(left, right, tables))
    return both


def after_join(join: AiJoin, left: Cardinality, joined: Cardinality, tables: Tables) -> Cardinality:
    """What a join of this kind gives when `joined` are the matches."""
    if join.kind == "inner":
        return joined
    if join.kind in ("semi", "anti"):
        rows = dict(left.rows)
        for name in _touched(join) & relations(join.left):
            kept = min(1.0, joined.live(name) / left.live(name)) if left.live(name) else 0.0
            rows[name] *= kept if join.kind == "semi" else 1 - kept
        return Cardinality(rows, left.edges, left.further)
    sides = {"left": (join.left,), "right": (join.right,), "full": (join.left, join.right)}[join.kind]
    preserved = frozenset().union(*map(relations, sides))
    for a in _touched(join) & relations(join.left):
        for b in _touched(join) & relations(join.right):
            if frozenset((a, b)) in joined.edges:
                joined = joined.preserving(a, b, preserved & {a, b})
    return joined


def _touched(join: AiJoin) -> frozenset[str]:
    """Relations that a join's condition reads."""
    keys = {ref.relation for pair in join.keys for ref in pair}
    return frozenset(keys.union(*(predicate.relations for predicate in join.predicates)))
