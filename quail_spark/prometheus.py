"""The engines' totals in the text format that Prometheus scrapes (exposition format 0.0.4). Driver- or executor-side."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from quail_spark.engine.stats import read_all_stats, read_stats

Samples = Iterator[tuple[dict[str, str], float]]  # labels beside those of the engine, value


@dataclass(frozen=True)
class Metric:
    """One metric; `samples` reads them from an engine's totals (an object of stats.py)."""

    name: str
    kind: str
    help: str
    samples: Callable[[dict], Samples]


def metrics(spark) -> str:
    """Metrics of the engines of this Spark application on the driver's machine, as text for Prometheus."""
    return exposition(read_stats(spark.sparkContext.applicationId))


def machine_metrics(application: str | None = None) -> str:
    """Metrics of one application's engines on this machine, or of all that this user runs."""
    return exposition(read_all_stats() if application is None else read_stats(application))


def exposition(engines: Iterable[dict]) -> str:
    """Text for engines' totals; a metric without samples is left out."""
    engines = list(engines)
    lines = []
    for metric in METRICS:
        samples = [(_labels(engine) | more, value) for engine in engines for more, value in metric.samples(engine)]
        if samples:
            lines += [f"# HELP {metric.name} {_escaped(metric.help)}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [_line(metric.name, labels, value) for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(engine: dict) -> dict[str, str]:
    return {"application": engine["application"], "device": engine["device"], "run": str(engine["run"])}


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text, quotes=True)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _of_operators(field: str) -> Callable[[dict], Samples]:
    def samples(engine: dict) -> Samples:
        for name, totals in engine["operators"].items():
            yield {"operator": name, "kind": totals["kind"]}, totals[field]

    return samples


def _of_engine(value: Callable[[dict], float | None]) -> Callable[[dict], Samples]:
    def samples(engine: dict) -> Samples:
        if (number := value(engine)) is not None:
            yield {}, number

    return samples


def _of_store(field: str) -> Callable[[dict], Samples]:
    return _of_engine(lambda engine: (engine.get("store") or {}).get(field))


def _info(engine: dict) -> Samples:
    facts = engine["describe"]
    labels = {"model": engine["model"], "dtype": str(facts.get("dtype", "")), "fp8": str(facts.get("fp8") or "")}
    yield labels | {"host": engine["host"], "pid": str(engine["pid"])}, 1


def _answers(engine: dict) -> Samples:
    for name, totals in engine["operators"].items():
        for index, (asked, passed) in enumerate(zip(totals["asked"], totals["passed"], strict=True)):
            labels = {"operator": name, "kind": totals["kind"], "predicate": str(index)}
            yield labels | {"answer": "true"}, passed
            yield labels | {"answer": "false"}, asked - passed


METRICS = (
    Metric("quail_spark_engine_info", "gauge", "What an engine serves.", _info),
    Metric("quail_spark_engine_up", "gauge", "Whether the engine runs.", _of_engine(lambda e: int(e["alive"]))),
    Metric(
        "quail_spark_engine_start_time_seconds",
        "gauge",
        "When the engine began to load its model, since the Unix epoch.",
        _of_engine(lambda e: e["started"]),
    ),
    Metric(
        "quail_spark_engine_load_seconds",
        "gauge",
        "How long the engine took to load its model.",
        _of_engine(lambda e: e["load_seconds"]),
    ),
    Metric(
        "quail_spark_engine_busy_seconds_total",
        "counter",
        "Time in which at least one batch was being answered.",
        _of_engine(lambda e: e["busy_seconds"]),
    ),
    Metric(
        "quail_spark_engine_open_streams",
        "gauge",
        "Tasks that are connected.",
        _of_engine(lambda e: e["streams"] if e["alive"] else 0),
    ),
    Metric("quail_spark_batches_total", "counter", "Answered batches.", _of_operators("batches")),
    Metric(
        "quail_spark_items_total", "counter", "Rows, or pairs of a join, that were answered.", _of_operators("rows")
    ),
    Metric("quail_spark_evaluations_total", "counter", "Answers that were computed.", _of_operators("evaluations")),
    Metric(
        "quail_spark_remembered_answers_total",
        "counter",
        "Answers from the memory of answers, the answer store or a duplicate.",
        _of_operators("remembered"),
    ),
    Metric("quail_spark_failed_answers_total", "counter", "Questions that can't be answered.", _of_operators("errors")),
    Metric(
        "quail_spark_answers_total",
        "counter",
        "Rows or pairs by predicate (its place in the operator) and answer.",
        _answers,
    ),
    Metric(
        "quail_spark_fresh_tokens_total", "counter", "Prompt tokens that were computed.", _of_operators("fresh_tokens")
    ),
    Metric(
        "quail_spark_reused_tokens_total",
        "counter",
        "Prompt tokens found in kept KV or remembered answers.",
        _of_operators("reused_tokens"),
    ),
    Metric(
        "quail_spark_recomputed_tokens_total",
        "counter",
        "Those of the fresh tokens that had been computed before.",
        _of_operators("recomputed_tokens"),
    ),
    Metric("quail_spark_model_seconds_total", "counter", "Time of the model.", _of_operators("seconds")),
    Metric("quail_spark_store_answers", "gauge", "Answers of the store in memory.", _of_store("answers")),
    Metric("quail_spark_store_waiting_answers", "gauge", "Answers not yet written.", _of_store("waiting")),
    Metric("quail_spark_store_written_answers_total", "counter", "Answers written.", _of_store("written")),
    Metric(
        "quail_spark_store_dropped_answers_total",
        "counter",
        "Answers given up while nothing could be written.",
        _of_store("dropped"),
    ),
    Metric("quail_spark_store_failures_total", "counter", "Failed reads and writes.", _of_store("failures")),
)
