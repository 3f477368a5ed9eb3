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
from .scala import JavaObject, conjuncts, kind

Document = tuple[int, ...]
PASSED_THROUGH = ("Filter", "Join", "Project")  # rows come out where, and when, they went in


def asked_below(planning: Planning, plan: JavaObject, above: frozenset[Document]) -> frozenset[Document]:
    """What operators below `plan` should keep: what `above` asks about, and what `plan` itself does."""
    if kind(plan) not in PASSED_THROUGH or planning.layout != "document_first":
        return frozenset()
    try:
        if kind(plan) == "Join":
            return above | _anchors(planning, plan)
        if kind(plan) == "Filter":
            return above | _filtered(planning, plan)
    except NotPlanned:
        pass
    return above


def is_asked_later(planning: Planning, calls: list[AiCall], front: JavaObject | None = None) -> bool:
    """Whether a later operator asks about the document of one of these calls. `front` as in `document`."""
    return any(document(call, front) in planning.asked_later for call in calls)


def document(call: AiCall, front: JavaObject | None = None) -> Document | None:
    """What stands before the call's question; None where an expression does. `front`: the anchor's attributes, in a join."""
    if front is not None:
        numbers = [i for i in call.used if call.arguments[i].references().subsetOf(front)]
    else:
        numbers = anchor_placeholders(call.options.anchor, len(call.arguments)) or call.used[:1]
    ids = tuple(_attribute(call.arguments[i]) for i in numbers)
    return None if None in ids or not ids else ids


def _attribute(argument: JavaObject) -> int | None:
    while kind(argument) == "Cast":
        argument = argument.child()
    return argument.exprId().id() if kind(argument) == "AttributeReference" else None


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
    front = (node.left() if left else node.right()).outputSet()
    return frozenset({document(call, front) for call in conditions.calls} - {None})


def _filtered(planning: Planning, node: JavaObject) -> frozenset[Document]:
    asking = [c for c in conjuncts(node.condition()) if planning.calls_ai(c)]
    calls = [call for c in asking if (call := ai_call(planning.catalyst, c)) is not None]
    return frozenset({document(call) for call in calls} - {None})
