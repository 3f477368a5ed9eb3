"""EXPLAIN for AI operators: what the planner made of a query, in the query's own words. Driver-side; nothing runs."""

import re
from collections.abc import Mapping

from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import Predicate
from quail_spark.optimizer.statistics import pass_rate
from quail_spark.optimizer.template import Literal, parse_template

from .estimating import estimate_lines
from .planning import PlannedOperator, Planning

LAYOUTS = {"document_first": "document before the question", "literal": "texts where the template has them"}
ASSUMED_RATE = "pass rate assumed, then observed"


def explain(df) -> str:
    """The AI operators of a DataFrame, innermost first, and what runs as a plain UDF and why. Classic Spark.

    The query is planned anew and not run. Raises ConfigError for what is no DataFrame.
    """
    from .catalyst import planned
    from .earlier import earlier_answers
    from .sql_method import is_connect

    _check(df)
    if is_connect(df.sparkSession):
        return "Spark Connect: AI calls run as plain UDFs; the planner needs the driver's JVM."
    session = df.sparkSession._jsparkSession.sessionState()
    skip = df.sparkSession._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
    execution = session.executePlan(df._jdf.queryExecution().logical(), skip)
    with planned.recording() as runs:
        plan = execution.optimizedPlan()
    return describe(runs, _udf_calls(plan), earlier_answers(df.sparkSession.sparkContext.applicationId))


def _check(df) -> None:
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        hint = "; df.show() returns None: hand over df" if df is None else ""
        got = "None" if df is None else f"a {type(df).__name__}"
        raise ConfigError(f"explain() got {got}; accepted: a DataFrame, such as spark.sql('SELECT …') returns{hint}")


def describe(runs: list[Planning], udf_calls: int, earlier: Mapping[str, tuple[int, int]]) -> str:
    """Text for what the planner decided in these runs (subqueries are runs of their own). `earlier`: answers and TRUE ones
    by question."""
    operators = [operator for run in runs for operator in run.operators]
    notes = [note for run in runs for note in run.notes]
    if not operators and not udf_calls:
        return "No AI calls in this query."
    lines = []
    for number, operator in enumerate(operators, 1):
        asked = questions(operator)
        seen = [earlier.get(words, (0, 0)) for words in asked]
        lines += _operator(number, operator, asked, seen)
        known = (operator.spec, operator.sizes, operator.conf, operator.kind, operator.keyed)
        lines += [f"     estimate: {line}" for line in estimate_lines(*known, seen)]
    if udf_calls:
        lines.append(
            f"{udf_calls} AI call(s) run as a plain UDF where Spark puts them (KV is not kept between predicates)"
        )
    lines += [f"  note: {note}" for note in dict.fromkeys(notes)]
    return "\n".join(lines)


def _operator(number: int, operator: PlannedOperator, asked: list[str], seen: list[tuple[int, int]]) -> list[str]:
    spec = operator.spec
    layouts = [LAYOUTS[predicate.layout or spec.layout] for predicate in spec.predicates]
    differ = len(set(layouts)) > 1
    layout = "as each question says" if differ else layouts[0]
    if spec.kind == "pairs":
        head = f"{number}. AI {operator.words} ({_rows(operator.rows[0], 'anchors')} × {_rows(operator.rows[1], 'partners')})"
        how = f"layout: {layout}; an anchor's KV serves all its partners; relational conditions come first"
        if operator.stops:
            how += "; an anchor's partners are asked in growing rounds up to its first TRUE"
    else:
        head = f"{number}. AI filter ({_rows(operator.rows[0], 'rows')})"
        how = (
            f"layout: {layout}; a document's KV is kept from one predicate to the next; a row leaves at its first FALSE"
        )
    lines = [f"{head}  [{spec.name}]"]
    each = zip(spec.predicates, operator.arguments, layouts, asked, seen, strict=True)
    for predicate, arguments, laid_out, words, answers in each:
        lines.append(f"     {words}")
        details = _details(predicate, arguments, spec.kind, answers)
        lines.append(f"       {details}{f'; layout: {laid_out}' if differ else ''}")
    lines.append(f"     {how}")
    return [*lines, "     the KV of what passes stays for the next operator"] if spec.retain else lines


def _rows(rows: int | None, noun: str) -> str:
    return f"unknown number of {noun}" if rows is None else f"about {rows:,} {noun}"


def questions(operator: PlannedOperator) -> list[str]:
    """An operator's questions in the query's own words."""
    return [question(p, a) for p, a in zip(operator.spec.predicates, operator.arguments, strict=True)]


def question(predicate: Predicate, arguments: tuple[str, ...]) -> str:
    """The template with the arguments' SQL in its places."""
    parts = (
        p.text if isinstance(p, Literal) else "{" + arguments[p.index] + "}" for p in parse_template(predicate.template)
    )
    return "".join(parts).replace("\n", " ")


def _details(predicate: Predicate, arguments: tuple[str, ...], kind: str, seen: tuple[int, int]) -> str:
    rate = ASSUMED_RATE if predicate.selectivity is None else f"expected pass rate {predicate.selectivity:.0%}"
    if predicate.selectivity is None and seen[0]:
        known = pass_rate(None, *seen)
        rate = f"expected pass rate {known.value:.0%} ({known.source})"
    if kind != "pairs":
        return rate
    anchors = ", ".join(arguments[i] for i in predicate.used if not predicate.arguments[i].partner)
    partners = ", ".join(arguments[i] for i in predicate.used if predicate.arguments[i].partner)
    sides = (f"anchor: {anchors}" if anchors else "", f"partner: {partners}" if partners else "", rate)
    return "; ".join(side for side in sides if side)


def _udf_calls(plan) -> int:
    """AI calls that are still UDFs in the optimised plan."""
    return len(re.findall(r"\bai_if(?:_details)?\(", plan.toString()))
