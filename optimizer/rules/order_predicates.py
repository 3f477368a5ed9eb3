"""Predicates of one operator in the order of cost per rejected row, the first about a document paying for it."""

from dataclasses import replace

from ..context import PlanContext
from ..logical import AiFilter, AiJoin, Plan, children, tables, with_children
from ..order import best_order
from ..steps import Step, make_step
from ..work import run


def order_predicates(plan: Plan, context: PlanContext) -> Plan:
    """Reorder each operator's predicates; within inner joins, `order_joins` looks at them once more with all it knows."""
    known = tables(plan)

    def ordered(node: Plan) -> Plan:
        node = with_children(node, tuple(map(ordered, children(node))))
        if not isinstance(node, AiFilter | AiJoin) or len(node.predicates) < 2:
            return node
        steps = [make_step(p, known, node.layout or context.layout, context) for p in node.predicates]
        return replace(node, predicates=tuple(node.predicates[p] for p in _order(steps, context)))

    return ordered(plan)


def _order(steps: list[Step], context: PlanContext) -> tuple[int, ...]:
    own, documents = [], []
    for step in steps:
        anchor = next(iter(step.shapes))
        shape = step.shapes[anchor]
        rest = shape.frame + shape.rest
        own.append(context.roofline(run(rest, shape.document.mean)))
        documents.append(((anchor, shape.key or step.predicate), context.roofline(run(shape.document))))
    return best_order([step.rate for step in steps], own, documents)
