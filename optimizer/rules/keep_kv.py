"""An operator whose documents are the anchors of the one above keeps their KV, and the two run as one."""

from dataclasses import replace

from ..context import PlanContext
from ..layout import prompt_shape
from ..logical import AiFilter, AiJoin, AiPredicate, Plan, anchor_of, children, relations, tables, with_children


def keep_kv(plan: Plan, context: PlanContext) -> Plan:
    """Mark the operators whose last document is the first one of the operator above."""
    known = tables(plan)

    def key(predicate: AiPredicate, anchor: str, layout: str | None):
        return prompt_shape(predicate, anchor, layout or context.layout, lambda t: known[t.relation].text(t.column)).key

    def first(node: Plan):
        if isinstance(node, AiFilter) and node.predicates:
            return key(node.predicates[0], node.anchors[0], node.layout)
        if isinstance(node, AiJoin) and node.predicates:
            return key(node.predicates[0], anchor_of(node, node.predicates[0]), node.layout)
        return None

    def last(node: Plan):
        if isinstance(node, AiFilter):
            return key(node.predicates[-1], node.anchors[-1], node.layout)
        if isinstance(node, AiJoin) and node.predicates:
            return key(node.predicates[-1], anchor_of(node, node.predicates[-1]), node.layout)
        return None

    def marked(node: Plan) -> Plan:
        wanted = first(node)
        anchor = (
            (node.anchors[0] if isinstance(node, AiFilter) else anchor_of(node, node.predicates[0])) if wanted else None
        )
        inputs = []
        for child in children(node):
            if wanted and anchor in relations(child) and last(child) == wanted:
                child = replace(child, keeps=True)
            inputs.append(marked(child))
        return with_children(node, tuple(inputs))

    return marked(plan)
