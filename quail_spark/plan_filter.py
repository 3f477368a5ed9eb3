"""AI filters on one relation become one MapInArrow: relational predicates first, then all AI predicates together."""

from functools import partial

from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

from .ai_calls import AiCall, ai_call
from .keeping_kv import front, is_asked_later
from .operators import RowColumns, run_filter
from .planning import Planning, operator_name
from .scala import JavaObject, conjuncts, items


def plan_filter(planning: Planning, node: JavaObject, required: set[int] | None) -> JavaObject:
    """Replace a Filter with AI conjuncts. `required`: ids of the attributes that the plan above reads (None: all)."""
    relational, calls, rest = [], [], []
    for condition in conjuncts(node.condition()):
        if not planning.calls_ai(condition):
            relational.append(condition)
        elif (call := ai_call(planning.catalyst, condition)) is not None:
            calls.append(call)
        else:
            rest.append(condition)
    if rest:
        many = "a condition" if len(rest) == 1 else f"{len(rest)} conditions"
        planning.note(f"{many} with an AI call inside OR, NOT, CASE or another expression, by UDF")
    if not calls:
        return node
    if rest:
        required = None if required is None else required | planning.references(rest)
    child = planning.catalyst.filter(relational, node.child())
    return planning.catalyst.filter(rest, ai_filter(planning, calls, child, required))


def ai_filter(planning: Planning, calls: list[AiCall], child: JavaObject, required: set[int] | None) -> JavaObject:
    """Rows of `child` for which every call is TRUE."""
    kept = [a for a in items(child.output()) if required is None or a.exprId().id() in required]
    planning.check_arrow_types(kept)
    columns = planning.input_columns()
    for attribute in kept:
        columns.add(attribute, f"c{len(columns)}")
    predicates = tuple(
        Predicate(
            call.template,
            tuple(Argument(columns.text(argument)) for argument in call.arguments),
            front(planning, call),
            call.options.selectivity,
            call.options.max_error_ratio,
            call.options.layout,
        )
        for call in calls
    )
    retain = is_asked_later(planning, calls)
    name = operator_name("filter", predicates, calls)
    spec = OperatorSpec(name, "filter", predicates, planning.layout, retain=retain)
    rows = RowColumns(texts=tuple(columns.text_names), kept=tuple(columns.names[: len(kept)]))
    source = planning.catalyst.project(columns.expressions, child)
    function = partial(run_filter, spec.to_json(), rows)
    return planning.replace(spec, calls, function, rows.kept, kept, source, child)
