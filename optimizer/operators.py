"""Estimates for one operator as the connector plans it: from its specification, the query's words and sizes of its inputs."""

from collections.abc import Sequence
from dataclasses import replace

from .anchor import SideSize
from .context import PlanContext
from .errors import ConfigError
from .estimate import OperatorEstimate, estimate_plan
from .logical import AiFilter, AiJoin, AiPredicate, Plan, Relation, TextRef, children
from .plan import OperatorSpec, Predicate
from .statistics import TableStats, table_stats

SIDES = ("rows", "partners")  # names of the inputs in the estimate


def estimate_operator(
    spec: OperatorSpec,
    inputs: Sequence[SideSize],
    context: PlanContext,
    kind: str = "inner",
    pairs: int | None = None,
    earlier: Sequence[tuple[int, int]] = (),
) -> OperatorEstimate:
    """What `spec` will cost. `inputs`: rows, or anchors and partners; `kind`: of a join, seen from its anchors.

    `text_bytes` of an input is what all its texts that the operator reads have together; where it is unknown the size of the
    whole stands in, else an assumption. `pairs`: how many meet where keys restrict them (None: all). `earlier`: answers to each
    predicate and TRUE ones among them, which count where there is no hint. Predicates of kind `answers` are all asked. Raises
    ConfigError for a wrong number of inputs.
    """
    expected = 2 if spec.kind == "pairs" else 1
    if len(inputs) != expected:
        raise ConfigError(f"got {len(inputs)} inputs for operator {spec.name!r}; accepted: {expected}")
    relations = [Relation(name, _stats(spec, size, name)) for name, size in zip(SIDES, inputs, strict=False)]
    predicates = tuple(_predicate(p, spec.kind) for p in spec.predicates)
    seen = {p.words: answers for p, answers in zip(predicates, earlier, strict=False) if p.selectivity is None}
    context = replace(context, observed={**context.observed, **seen})
    if expected == 1:
        plan: Plan = AiFilter(predicates, relations[0], anchors=(SIDES[0],) * len(predicates), layout=spec.layout)
    else:
        relations, keys = _keyed(relations, pairs)
        plan = AiJoin(kind, *relations, keys, predicates, SIDES[0], layout=spec.layout)
    (operator,) = estimate_plan(plan, context).operators
    return operator


def guesses(operator: OperatorEstimate) -> list[str]:
    """What of an estimate rests on no statistics: `rows`, `text lengths`, `pass rates`."""
    stats = [relation.stats for relation in children(operator.plan)]
    lengths = [text.tokens.source for table in stats for text in table.texts.values()]
    sources = {
        "rows": [table.rows.source for table in stats],
        "text lengths": lengths,
        "pass rates": [question.rate.source for question in operator.questions],
    }
    sure = ("table statistics", "column statistics", "hint", "sample", "answers before")
    return [what for what, found in sources.items() if any(not any(s in source for s in sure) for source in found)]


def _column(number: int) -> str:
    return f"text{number}"


def _columns(spec: OperatorSpec, partner: bool) -> list[str]:
    """The texts of one side that some predicate uses."""
    used = {p.arguments[i].column for p in spec.predicates for i in p.used if p.arguments[i].partner == partner}
    return [_column(number) for number in sorted(used)]


def _stats(spec: OperatorSpec, size: SideSize, name: str) -> TableStats:
    columns = _columns(spec, name == SIDES[1])
    share = None if size.text_bytes is None or not columns else size.text_bytes / len(columns)
    return table_stats(columns, size.rows, size.total_bytes, None if share is None else dict.fromkeys(columns, share))


def _predicate(predicate: Predicate, kind: str) -> AiPredicate:
    arguments = tuple(TextRef(SIDES[a.partner], _column(a.column)) for a in predicate.arguments)
    anchor = None if kind == "pairs" or not predicate.anchor else ",".join(map(str, predicate.anchor))
    rate = 1.0 if kind == "answers" else predicate.selectivity
    return AiPredicate(predicate.template, arguments, rate, anchor, predicate.layout)


def _keyed(relations: list[Relation], pairs: int | None) -> tuple[list[Relation], tuple]:
    """The inputs with a key of so many distinct values that `pairs` meet."""
    if not pairs:
        return relations, ()
    rows = [relation.stats.rows.value for relation in relations]
    distinct = max(1.0, rows[0] * rows[1] / pairs)
    keyed = [Relation(r.name, TableStats(r.stats.rows, r.stats.texts, {"key": distinct})) for r in relations]
    return keyed, ((TextRef(SIDES[0], "key"), TextRef(SIDES[1], "key")),)
