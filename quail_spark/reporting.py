"""What AI operators did, from the totals that the engines of this machine write. Driver-side."""

from dataclasses import asdict, dataclass, fields

from quail_spark.engine.stats import read_stats, total_operators
from quail_spark.optimizer.explain import amount, duration

from .catalyst import planned
from .earlier import planned_name, questions_of
from .estimating import estimated


@dataclass(frozen=True)
class PredicateReport:
    """Rows (or pairs) that got TRUE or FALSE, and of those TRUE."""

    question: str
    asked: int
    passed: int


@dataclass(frozen=True)
class Expected:
    """What one run of an operator was expected to take on `device` when it was planned, before any answer was known."""

    answers: float
    fresh_tokens: float
    reused_tokens: float
    seconds: float
    device: str


@dataclass(frozen=True)
class OperatorReport:
    """Totals of one operator. Tokens are prompt tokens: `fresh` were computed, `reused` were found in kept KV or
    remembered answers, `recomputed` are the fresh ones that had been computed before. Seconds are model time.
    `expected` is None where the driver knew too little of model, device or sizes."""

    name: str
    kind: str
    rows: int
    evaluations: int
    remembered: int
    errors: int
    fresh_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    seconds: float
    predicates: tuple[PredicateReport, ...]
    expected: Expected | None = None


@dataclass(frozen=True)
class Report:
    """All AI operators of the application so far, and the engines that ran them."""

    operators: tuple[OperatorReport, ...]
    engines: tuple[dict, ...]

    def as_dict(self) -> dict:
        """Plain values, for JSON."""
        return asdict(self)

    def plot(self):
        """A matplotlib figure: tokens of each operator, pass rates of predicates. Raises SetupError without matplotlib."""
        from .plotting import plot

        return plot(self)

    def __str__(self) -> str:
        lines = [_engine(engine) for engine in self.engines]
        for operator in self.operators:
            lines += _operator(operator)
        return "\n".join(lines or ["No AI operator has run yet."])


def report(spark) -> Report:
    """What the AI operators of this Spark application did so far.

    Reads what the engines on the driver's machine wrote: all of them for a local master, those beside the driver on a
    cluster.
    """
    engines = read_stats(spark.sparkContext.applicationId)
    totals = total_operators(engines)
    operators = sorted(totals.items(), key=lambda item: item[1]["first"] or 0)
    return Report(tuple(_read(name, total) for name, total in operators), tuple(engines))


def _read(name: str, totals: dict) -> OperatorReport:
    questions = questions_of(name, totals)
    asked, passed = totals["asked"] or [0] * len(questions), totals["passed"] or [0] * len(questions)
    predicates = tuple(PredicateReport(*row) for row in zip(questions, asked, passed, strict=True))
    numbers = {field.name: totals[field.name] for field in fields(OperatorReport) if field.name in totals}
    known = {"name": " ".join(name.split()), "predicates": predicates, "expected": _expected(planned_name(name))}
    return OperatorReport(**{**numbers, **known})


def _expected(name: str) -> Expected | None:
    known = planned.get(name)
    found = known and estimated(known.spec, known.sizes, known.conf, known.kind, known.keyed)
    if not found:
        return None
    estimate, context = found
    work, device = estimate.work, context.roofline.device.name
    return Expected(work.answers, work.fresh, work.reused, estimate.seconds.total, device)


def _engine(engine: dict) -> str:
    facts = engine["describe"]
    loaded = f", loaded in {engine['load_seconds']:.1f} s" if engine.get("load_seconds") else ""
    busy = f", busy {engine['busy_seconds']:.1f} s" if engine.get("busy_seconds") else ""
    return (
        f"engine on {engine['device']}: {facts.get('model', engine['model'])}, {facts.get('dtype', '?')}{loaded}{busy}"
        + _store(engine.get("store"))
    )


def _store(store: dict | None) -> str:
    """A line on the answer store, if there is one; failures are not silent."""
    if not store:
        return ""
    lost = f"; {store['failure']} ({store['failures']} times)" if store["failure"] else ""
    return f"\n    {store['answers']:,} answers in memory of the store {store['location']}, {store['written']:,} written{lost}"


def _operator(operator: OperatorReport) -> list[str]:
    total = operator.fresh_tokens + operator.reused_tokens
    speed = f"{total / operator.seconds:,.0f} prompt tokens/s" if operator.seconds else "no model time"
    share = operator.reused_tokens / total if total else 0.0
    noun = "pairs" if operator.kind == "pairs" else "rows"
    lines = [
        f"{operator.name}: {operator.rows:,} {noun}, {operator.evaluations:,} evaluations "
        f"({operator.remembered:,} answers remembered), {operator.errors} errors",
        f"    tokens: {operator.fresh_tokens:,} fresh, {operator.reused_tokens:,} reused ({share:.0%}), "
        f"{operator.recomputed_tokens:,} recomputed; {operator.seconds:.1f} s, {speed}",
    ]
    if expected := operator.expected:
        lines.append(
            f"    expected of one run: {amount(expected.answers)} answers, {amount(expected.fresh_tokens)} tokens fresh, "
            f"{amount(expected.reused_tokens)} reused; {duration(expected.seconds)} on {expected.device}"
        )
    for predicate in operator.predicates:
        rate = f"{predicate.passed / predicate.asked:.0%}" if predicate.asked else "–"
        lines.append(
            f"    {predicate.passed:,} of {predicate.asked:,} TRUE ({rate})  {' '.join(predicate.question.split())}"
        )
    return lines
