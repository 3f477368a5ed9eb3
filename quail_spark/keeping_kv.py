"""Whose KV an operator leaves to the next one: the documents that a later operator of the same stage asks about. Driver-side.

A document is named by the ids of the attributes whose texts stand before the question, in order. Two prompts with equal
documents start with the same tokens.
"""

from dataclasses import replace

from .ai_calls import AiCall, ai_call
from .anchors import anchor_placeholders
from .join_conditions import sort_conditions
from .join_kinds import KINDS, join_type
from .join_sides import anchor_is_left
from .planning import NotPlanned, Planning
from .scala import JavaObject, conjuncts, items, kind

Document = tuple[int, ...]
PASSED_THROUGH = ("Filter", "Join", "Project")  # rows come out where, and when, they went in


def asked_below(planning: Planning, plan: JavaObject, above: frozenset[Document]) -> frozenset[Document]:
    """What operators below `plan` should keep: what `above` asks about, and what `plan` itself does."""
    if kind(plan) not in PASSED_THROUGH:
        return frozenset()
    try:
        if kind(plan) == "Project":
            return _below_aliases(plan, above)
        if kind(plan) == "Join":
            return above | _anchors(planning, plan)
        if kind(plan) == "Filter":
            return above | _filtered(planning, plan)
    except NotPlanned:
        pass
    return above


def is_asked_later(planning: Planning, calls: list[AiCall], anchor: JavaObject | None = None) -> bool:
    """Whether a later operator asks about the document of one of these calls. `anchor` as in `document`."""
    return any(document(planning, call, anchor) in planning.asked_later for call in calls)


def front(planning: Planning, call: AiCall) -> tuple[int, ...] | None:
    """The placeholders whose texts stand first in a call about rows; None: the first one's."""
    return planning.fronts.get(call.key) or anchor_placeholders(call.options.anchor, len(call.arguments))


def document(planning: Planning, call: AiCall, anchor: JavaObject | None = None) -> Document | None:
    """What stands before the call's question; None where an expression does, or the layout puts the question first.

    `anchor`: the anchor's attributes, in a join.
    """
    if planning.layout_of(call.options) != "document_first":
        return None
    if anchor is not None:
        numbers = [i for i in call.used if call.arguments[i].references().subsetOf(anchor)]
    else:
        numbers = front(planning, call) or call.used[:1]
    ids = tuple(_attribute(call.arguments[i]) for i in numbers)
    return None if None in ids or not ids else ids


def _attribute(argument: JavaObject) -> int | None:
    while kind(argument) == "Cast":
        argument = argument.child()
    return argument.exprId().id() if kind(argument) == "AttributeReference" else None


def _below_aliases(plan: JavaObject, above: frozenset[Document]) -> frozenset[Document]:
    """The documents by the names that their texts have below a Project."""
    renamed = {e.exprId().id(): _attribute(e.child()) for e in items(plan.projectList()) if kind(e) == "Alias"}
    named = {tuple(renamed.get(id_, id_) for id_ in document) for document in above}
    return frozenset(document for document in named if None not in document)


def _anchors(planning: Planning, node: JavaObject) -> frozenset[Document]:
    name = join_type(node)
    if node.condition().isEmpty() or not planning.calls_ai(node.condition().get()):
        return frozenset()
    if name == "RightOuter":
        node, name = planning.catalyst.mirrored(node), "LeftOuter"
    if name not in KINDS:
        return frozenset()
    planning = replace(planning, notes=[])  # what is noted here is noted again when the join is planned
    conditions = sort_conditions(planning, node)
    left = KINDS[name] != "inner" or anchor_is_left(planning, node, conditions)
    anchor = (node.left() if left else node.right()).outputSet()
    return frozenset({document(planning, call, anchor) for call in conditions.calls} - {None})


def _filtered(planning: Planning, node: JavaObject) -> frozenset[Document]:
    asking = [c for c in conjuncts(node.condition()) if planning.calls_ai(c)]
    calls = [call for c in asking if (call := ai_call(planning.catalyst, c)) is not None]
    return frozenset({document(planning, call) for call in calls} - {None})
