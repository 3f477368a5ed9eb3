"""Several inner joins in the order that the optimizer finds cheapest, before each of them becomes an operator. Driver-side.

A cluster (join_cluster.py) is translated to the optimizer's algebra (join_logical.py) and planned by its rules. Where that
is cheaper than the order as written, Joins and Filters are built anew, and `Planning.fronts` says which texts stand first.
"""

import logging
from dataclasses import dataclass, field, replace

from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.estimate import PlanEstimate, estimate_plan
from quail_spark.optimizer.logical import (
    AiFilter,
    AiJoin,
    AiPredicate,
    Plan,
    Relation,
    anchor_of,
    children,
    nodes,
    relations,
    tables,
)
from quail_spark.optimizer.rows import before_predicates, plan_rows
from quail_spark.optimizer.rules import RULES, optimize
from quail_spark.optimizer.rules.order_joins import order_joins as order_joins_rule
from quail_spark.optimizer.statistics import BYTES_PER_TOKEN

from .estimating import plan_context
from .join_cluster import Cluster, is_member, joins
from .join_logical import Translation, crosses
from .planning import NotPlanned, Planning
from .scala import JavaObject, items, kind

ROW_SECONDS = 30e-6  # what a row costs around the model: docs/benchmarks.md
WORTH = 0.95  # another order is taken when it costs at most this share of the written one
MOST_BROADCAST = 1 << 30  # bytes of partners; Spark itself refuses at 8 GB

WRITTEN = "order of questions as written"

_log = logging.getLogger(__name__)


def order_joins(planning: Planning, plan: JavaObject) -> JavaObject:
    """The plan with every cluster of inner joins that ask questions in its best order. EXPLAIN notes what was decided."""
    if not planning.mentions_ai(plan):
        return plan
    if kind(plan) in ("Filter", "Join") and joins(plan) and not plan.isStreaming():
        try:
            if (ordered := _ordered(planning, plan)) is not None:
                return ordered
        except NotPlanned as reason:
            planning.note(f"{WRITTEN}: {reason}")
        except Exception:
            if planning.conf["optimizer.strict"]:
                raise
            _log.warning("questions of several tables are asked as written because ordering them failed", exc_info=True)
        return _with_inputs_ordered(planning, plan)
    return _over(planning, plan, [order_joins(planning, child) for child in items(plan.children())])


def _with_inputs_ordered(planning: Planning, node: JavaObject) -> JavaObject:
    """The same cluster over inputs that are ordered."""
    if not is_member(node):
        return order_joins(planning, node)
    return _over(planning, node, [_with_inputs_ordered(planning, child) for child in items(node.children())])


def _over(planning: Planning, plan: JavaObject, inputs: list[JavaObject]) -> JavaObject:
    if all(new is old for new, old in zip(inputs, items(plan.children()), strict=True)):
        return plan
    return plan.withNewChildren(planning.catalyst.seq(inputs))


def _ordered(planning: Planning, root: JavaObject) -> JavaObject | None:
    """The cluster in another order; None: it stays. Raises NotPlanned when it can't be judged."""
    cluster = Cluster.of(planning, root)
    if not _can_differ(planning, cluster):
        return None
    translation = Translation(planning, cluster)
    written, context = translation.written, _context(planning)
    as_it_is = _decided(written, context)
    best = optimize(written, context)
    old, new = (_seconds(plan, context) for plan in (as_it_is, best))
    shown = _steps(estimate_plan(as_it_is, context))
    if new >= old * WORTH or not _fits(best, context, _adaptive(planning)):
        planning.note(f"{WRITTEN} ({shown}): no other is expected to be cheaper")
        return None
    built = _Builder(planning, translation)
    plan = built.whole(best)
    if built.crosses > crosses(cluster.written):
        raise NotPlanned("another one would be cheaper, but meets tables that no condition joins")
    planning.fronts |= built.fronts
    planning.note(
        f"order of questions: {_steps(estimate_plan(best, context))}; written: {shown}; "
        f"{new / old:.0%} of its expected time"
    )
    return _restored(planning, cluster, root, plan)


def _can_differ(planning: Planning, cluster: Cluster) -> bool:
    """Whether there is anything to order: not for a single question about the only pair."""
    asking = sum(map(planning.calls_ai, cluster.conditions))
    return asking > 0 and (asking > 1 or len(cluster.inputs) > 2 or len(cluster.conditions) > 1)


def _context(planning: Planning) -> PlanContext:
    return replace(plan_context(planning.conf, stand_in=True), layout=planning.layout)


def _decided(written: Plan, context: PlanContext) -> Plan:
    """The plan as it runs without another order."""
    for rule in RULES:
        if rule is not order_joins_rule:
            written = rule(written, context)
    return written


def _seconds(plan: Plan, context: PlanContext) -> float:
    """Of the model, and of the rows and pairs that meet it or are joined: an equality that multiplies rows before a question costs
    no answers, but it does cost time."""
    known, met = tables(plan), 0.0
    for node in nodes(plan):
        if isinstance(node, AiFilter):
            met += plan_rows(node.child, context, known).total
        elif isinstance(node, AiJoin):
            sides = plan_rows(node.left, context, known) | plan_rows(node.right, context, known)
            met += before_predicates(node, sides, known).total
    return estimate_plan(plan, context).seconds + met * ROW_SECONDS


def _adaptive(planning: Planning) -> bool:
    return planning.catalyst.spark._jsparkSession.sessionState().conf().adaptiveExecutionEnabled()


def _fits(plan: Plan, context: PlanContext, adaptive: bool) -> bool:
    """Whether partners can be broadcast: without an equality there is no other way, so they must be small.

    Unless plans are adaptive they must ask nothing, since Spark then waits only `spark.sql.broadcastTimeout` for them.
    """
    known = tables(plan)
    for node in nodes(plan):
        if isinstance(node, AiJoin) and node.predicates:
            partner = node.right if node.anchor in relations(node.left) else node.left
            tokens = sum(t.tokens.value for name in relations(partner) for t in known[name].texts.values())
            asks = any(isinstance(below, AiFilter | AiJoin) and below.predicates for below in nodes(partner))
            if asks and not adaptive:
                return False
            size = plan_rows(partner, context, known).total * tokens * BYTES_PER_TOKEN
            if size > MOST_BROADCAST and not node.keys:
                return False
    return True


def _steps(estimate: PlanEstimate) -> str:
    """`a, a × b`: the tables that each operator asks about, in the order in which they run."""
    return ", ".join(" × ".join(name for name, _ in operator.rows_in) for operator in estimate.operators)


@dataclass
class _Builder:
    """Joins and Filters of Spark for a logical plan. `crosses`: joins without a condition among them."""

    planning: Planning
    translation: Translation
    crosses: int = 0
    fronts: dict[tuple, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self):
        self._waiting = list(self.translation.relational)

    def whole(self, plan: Plan) -> JavaObject:
        """The plan of the whole cluster; each relational condition stands where all its columns are first together."""
        catalyst = self.planning.catalyst
        if isinstance(plan, Relation):
            source = order_joins(self.planning, self.translation.table(plan.name).plan)
            return catalyst.filter(self._met(source), source)
        inputs = [self.whole(child) for child in children(plan)]
        asked = [self._asked(plan, number) for number in range(len(plan.predicates))]
        if isinstance(plan, AiFilter):
            return catalyst.filter(asked, inputs[0])
        conditions = self._met(*inputs) + asked
        self.crosses += not conditions
        return catalyst.inner_join(*inputs, conditions)

    def _met(self, *inputs: JavaObject) -> list[JavaObject]:
        """Relational conditions whose columns are all there; they wait no longer."""
        there = {a.exprId().id() for plan in inputs for a in items(plan.output())}
        met = [c for c in self._waiting if self.planning.references([c]) <= there]
        self._waiting = [c for c in self._waiting if not any(c is other for other in met)]
        return met

    def _asked(self, plan: AiFilter | AiJoin, number: int) -> JavaObject:
        predicate = plan.predicates[number]
        call = self.translation.calls[predicate]
        if len(predicate.relations) > 1:
            anchor = plan.anchors[number] if isinstance(plan, AiFilter) else anchor_of(plan, predicate)
            self.fronts[call.key] = _front(predicate, call.used, anchor)
        return call.expression


def _front(predicate: AiPredicate, used: tuple[int, ...], anchor: str) -> tuple[int, ...]:
    """Placeholders of the anchor's texts."""
    return tuple(i for i in used if predicate.arguments[i].relation == anchor)


def _restored(planning: Planning, cluster: Cluster, root: JavaObject, plan: JavaObject) -> JavaObject:
    """The plan with the columns of the cluster's root, in their order and under their ids."""
    catalyst, wanted = planning.catalyst, items(root.output())
    if not any(a.exprId().id() in cluster.sources for a in wanted):
        return catalyst.in_order(plan, wanted)
    there = {a.exprId().id(): a for a in items(plan.output())}
    columns = []
    for attribute in wanted:
        source = cluster.sources.get(attribute.exprId().id())
        columns.append(
            there[attribute.exprId().id()] if source is None else catalyst.alias(source, attribute.name(), attribute)
        )
    return catalyst.project(columns, plan)
