"""Calls inside CASE, IF, COALESCE, AND and OR are asked about the rows that come to them. Driver-side.

Spark computes Python UDFs of a node for all its rows, before the expressions around them choose. So what chooses goes into
the call: its prompt is NULL, and not asked, where the branch is not taken. That also keeps the prompt's arguments, which may
raise, behind the condition that guards them, as Spark's own expressions are. Conditions count in the order written, and only
those that Spark computes from the row alone, with the same outcome each time.
"""

from .ai_calls import is_ai
from .planning import Planning
from .scala import JavaObject, conjuncts, items, kind


def guard_calls(planning: Planning, plan: JavaObject) -> JavaObject:
    """The plan with the UDF's calls guarded; for calls that no operator took over."""
    if not planning.mentions_ai(plan):
        return plan
    children = [guard_calls(planning, child) for child in items(plan.children())]
    plan = plan.withNewChildren(planning.catalyst.seq(children)) if children else plan
    replacements = planning.catalyst.jvm.java.util.HashMap()
    for expression in items(plan.expressions()):
        for condition in conjuncts(expression) if kind(plan) in ("Filter", "Join") else [expression]:
            if planning.calls_ai(condition):
                replacements.put(condition, _guarded(planning, condition, []))
    return plan if replacements.isEmpty() else planning.builder.replaceExpressions(plan, replacements)


def _guarded(planning: Planning, expression: JavaObject, guards: list[JavaObject]) -> JavaObject:
    """`expression` where all `guards` are TRUE; elsewhere its value does not matter."""
    if not planning.calls_ai(expression):
        return expression
    children, reached = items(expression.children()), _reached(planning, expression)
    more = [[g for g in own if g.deterministic() and not planning.builder.leavesTheRow(g)] for own in reached]
    changed = [_guarded(planning, child, guards + own) for child, own in zip(children, more, strict=True)]
    if is_ai(expression) and guards:
        changed[0] = planning.catalyst.only_where(guards, changed[0])
    return expression.withNewChildren(planning.catalyst.seq(changed))


def _reached(planning: Planning, expression: JavaObject) -> list[list[JavaObject]]:
    """For each child, what must be TRUE for its value to matter, besides what must be for the whole."""
    catalyst, children = planning.catalyst, items(expression.children())
    match kind(expression):
        case "If":
            condition = children[0]
            return [[], [condition], [catalyst.is_not(condition, True)]]
        case "CaseWhen":
            reached, before = [], []
            for condition in children[0 : len(children) // 2 * 2 : 2]:
                reached += [list(before), [*before, condition]]
                before.append(catalyst.is_not(condition, True))
            return reached + [before] * (len(children) % 2)
        case "And" | "Or":
            return [[], [catalyst.is_not(children[0], kind(expression) == "Or")]]
        case "Coalesce":
            nulls = [catalyst.is_null(child) for child in children]
            return [nulls[:n] for n in range(len(children))]
    return [[] for _ in children]
