"""Layout `auto`: where the texts stand in each question, settled before a query is planned. Driver-side.

A layout is part of a prompt, and so of its answer. It is written into the call's options at the very start, planner on or
off, from the same plan of Spark's: operators and UDFs ask the same. Questions that share a text, or that are equal but for
their columns, get one layout.
"""

from collections.abc import Iterator
from dataclasses import replace

from quail_spark.optimizer.cardinality import components
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Relation, TextRef, nodes
from quail_spark.optimizer.rules import optimize
from quail_spark.optimizer.statistics import table_stats

from .ai_calls import AiCall, ai_call, ai_expressions, given_options
from .anchors import anchor_placeholders, anchor_text
from .estimating import plan_context
from .planning import Planning
from .scala import JavaObject, items


def settle_layouts(planning: Planning, plan: JavaObject) -> JavaObject:
    """The plan with a layout among the options of every call whose layout is `auto` and whose prompt is spelled out."""
    calls = list(_open_calls(planning, plan))
    if not calls:
        return plan
    replacements = planning.catalyst.jvm.java.util.HashMap()
    for group in _groups(calls):
        layout = _cheaper(planning, plan, group)
        asked = ", ".join(dict.fromkeys(repr(call.template) for call in group))
        planning.note(f"layout auto: {layout} for {asked if len(asked) <= 90 else asked[:89] + '…'}")
        for call in group:
            prompt, *_ = items(call.expression.children())
            options = planning.catalyst.text_map(given_options(planning.catalyst, call) | {"layout": layout})
            children = planning.catalyst.seq([prompt, options])
            replacements.put(call.expression, planning.builder.withChildren(call.expression, children))
    return _replaced(planning, plan, replacements)


def _open_calls(planning: Planning, plan: JavaObject) -> Iterator[AiCall]:
    """The calls of a plan whose layout is `auto` and whose prompts are spelled out."""
    if not planning.mentions_ai(plan):
        return
    for expression in items(plan.expressions()):
        for asking in ai_expressions(planning, expression):
            call = ai_call(planning.catalyst, asking) if _may_be_open(planning, asking) else None
            if call is not None and (call.options.layout or planning.conf["prompt.layout"]) == "auto":
                yield call
    for child in items(plan.children()):
        yield from _open_calls(planning, child)


def _may_be_open(planning: Planning, asking: JavaObject) -> bool:
    """Without reading the call: whether the session or an option of the call speaks of `auto`."""
    options = items(asking.children())[1:]
    return planning.conf["prompt.layout"] == "auto" or any("auto" in option.toString() for option in options)


def _replaced(planning: Planning, plan: JavaObject, replacements: JavaObject) -> JavaObject:
    if not planning.mentions_ai(plan):
        return plan
    children = [_replaced(planning, child, replacements) for child in items(plan.children())]
    plan = plan.withNewChildren(planning.catalyst.seq(children)) if children else plan
    return planning.builder.replaceExpressions(plan, replacements)


def _groups(calls: list[AiCall]) -> list[list[AiCall]]:
    """Calls that must have one layout, or profit from it."""
    marks = [{call.template, *(str(call.arguments[i].toString()) for i in call.used)} for call in calls]
    shared = [frozenset(n for n, own in enumerate(marks) if mark in own) for mark in sorted(set().union(*marks))]
    return [[calls[n] for n in sorted(group)] for group in components(range(len(calls)), shared)]


def _cheaper(planning: Planning, plan: JavaObject, calls: list[AiCall]) -> str:
    """The layout in which these questions, asked of all rows of what they read, are expected to cost less."""
    context = replace(plan_context(planning.conf, stand_in=True), layout="auto")
    sources: dict[str, tuple[JavaObject | None, set[str]]] = {}
    predicates = [p for call in calls if (p := _predicate(plan, call, sources)) is not None]
    whole: Plan | None = None
    for name, (node, columns) in sources.items():
        rows = None if node is None else planning.statistics.rows_read(node)
        size = None if node is None else int(str(node.stats().sizeInBytes()))
        relation = Relation(name, table_stats(sorted(columns), rows, size))
        whole = relation if whole is None else AiJoin("inner", whole, relation)
    if whole is None:
        return planning.layout
    asked = optimize(AiFilter(tuple(dict.fromkeys(predicates)), whole), context)
    return next(node.layout for node in nodes(asked) if isinstance(node, AiFilter | AiJoin) and node.layout)


def _predicate(plan: JavaObject, call: AiCall, sources: dict) -> AiPredicate | None:
    """A call in the optimizer's words; what it reads is added to `sources`. None: it reads no column."""
    owners = {}
    for i in call.used:
        for attribute in items(call.arguments[i].references().toSeq())[:1]:
            node = _source(plan, attribute)
            ids = [attribute] if node is None else items(node.output())
            owners[i] = " ".join(str(a.exprId().id()) for a in ids)
            sources.setdefault(owners[i], (node, set()))
    if not owners:
        return None
    first = next(iter(owners.values()))
    arguments = [TextRef(owners.get(i, first), str(a.toString())) for i, a in enumerate(call.arguments)]
    for i in call.used:
        sources[arguments[i].relation][1].add(arguments[i].column)
    numbers = anchor_placeholders(call.options.anchor, len(call.arguments)) or ()
    numbers = [i for i in numbers if i in owners]
    hint = anchor_text(i for i in numbers if owners[i] == owners[numbers[0]]) or None
    return AiPredicate(call.template, tuple(arguments), call.options.selectivity, hint)


def _source(plan: JavaObject, attribute: JavaObject) -> JavaObject | None:
    """The lowest node that has this column; None: it is within a subquery."""
    for child in items(plan.children()):
        if child.outputSet().contains(attribute):
            return _source(child, attribute)
    return plan if plan.outputSet().contains(attribute) else None
