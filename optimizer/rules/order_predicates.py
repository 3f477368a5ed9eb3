"""Predicates of one operator in the order of cost per rejected row, the first about a document paying for it."""

from dataclasses import replace
from itertools import permutations

from ..cardinality import Cardinality
from ..context import PlanContext
from ..logical import AiFilter, AiJoin, Plan, anchor_of, children, nodes, tables, with_children
from ..order import best_order
from ..repeats import question_key
from ..rows import Tables, before_predicates, plan_rows
from ..steps import Step, make_step
from ..work import run
from .choose_anchors import choose_anchors
from .hold_filters import planned_seconds, replaced

EXHAUSTIVE = (
    4  # up to this many questions about pairs, every order is costed: their anchors' share does not shrink like pairs
)


def order_predicates(plan: Plan, context: PlanContext) -> Plan:
    """Reorder each operator's predicates; within inner joins, `order_joins` looks at them once more with all it knows.

    Where another name of a table is asked the same, the order is tried that makes the whole query cheapest: what was asked
    before costs nothing.
    """
    known = tables(plan)

    def ordered(node: Plan) -> Plan:
        node = with_children(node, tuple(map(ordered, children(node))))
        if not isinstance(node, AiFilter | AiJoin) or len(node.predicates) < 2:
            return node
        return replace(node, predicates=tuple(node.predicates[p] for p in _order(node, context, known)))

    plan = ordered(plan)
    for number in range(sum(1 for node in nodes(plan) if _asks_again(node, plan, known))):
        node = [node for node in nodes(plan) if _asks_again(node, plan, known)][number]
        orders = (replaced(plan, node, replace(node, predicates=order)) for order in permutations(node.predicates))
        plan = min(orders, key=lambda each: planned_seconds(each, context))
    return plan


def _asks_again(node: Plan, plan: Plan, known: Tables) -> bool:
    """Whether a node with an order to choose asks what another one asks of another name of a table. Inner joins alone are the
    matter of `order_joins`."""
    if not isinstance(node, AiFilter | AiJoin) or not 2 <= len(node.predicates) <= EXHAUSTIVE:
        return False
    if not any(isinstance(other, AiJoin) and other.kind != "inner" for other in nodes(plan)):
        return False
    others = [other for other in nodes(plan) if isinstance(other, AiFilter | AiJoin) and other is not node]
    elsewhere = {question_key(p, known) for other in others for p in other.predicates}
    return any(question_key(p, known) in elsewhere for p in node.predicates)


def _order(node: AiFilter | AiJoin, context: PlanContext, known: Tables) -> tuple[int, ...]:
    rows = _rows(node, context, known)
    anchored = choose_anchors(node, context)
    if isinstance(anchored, AiJoin):
        anchors = [anchor_of(anchored, predicate) for predicate in node.predicates]
    else:
        anchors = list(anchored.anchors)
    layout = node.layout or context.layout
    steps = [make_step(p, known, layout, context, a) for p, a in zip(node.predicates, anchors, strict=True)]
    if any(len(step.relations) > 1 for step in steps) and len(steps) <= EXHAUSTIVE:
        orders = permutations(range(len(steps)))
        return min(orders, key=lambda order: _seconds([(steps[p], anchors[p]) for p in order], rows, context))
    own, documents = zip(*(_costs(s, a, rows, context) for s, a in zip(steps, anchors, strict=True)), strict=True)
    return best_order([step.rate for step in steps], own, documents)


def _seconds(order: list[tuple[Step, str]], rows: Cardinality, context: PlanContext) -> float:
    """Of all questions in this order."""
    seconds, held = 0.0, None
    for step, anchor in order:
        document = step.document(anchor)
        known = document is not None and document == held
        seconds += context.roofline(step.work(rows, anchor, known, False, context.chunk))
        rows, held = step.after(rows), document
    return seconds


def _rows(node: AiFilter | AiJoin, context: PlanContext, known: Tables) -> Cardinality:
    if isinstance(node, AiFilter):
        return plan_rows(node.child, context, known)
    sides = plan_rows(node.left, context, known) | plan_rows(node.right, context, known)
    return before_predicates(node, sides, known)


def _costs(step: Step, anchor: str, rows: Cardinality, context: PlanContext) -> tuple[float, tuple[object, float]]:
    """Seconds per row or pair of a question alone, and of its document, which all partners of an anchor share."""
    shape = step.shapes[anchor]
    share = 1.0
    if len(step.relations) > 1 and shape.key is not None:
        pairs = rows.combinations(step.relations)
        share = min(1.0, rows.live(anchor) / pairs) if pairs else 1.0
    frame = context.roofline(run(shape.frame, shape.document.mean)) * share
    rest = context.roofline(run(shape.rest, shape.document.mean + shape.frame.mean))
    document = context.roofline(run(shape.document)) * share
    return frame + rest, ((anchor, shape.key or step.predicate), document)
