"""AI filters in Spark's Python workers, and what all operators share: they stream Arrow batches to the engine of their
device. No torch here."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quail_spark.engine.wire import decoded
from quail_spark.optimizer.plan import TRUE, OperatorSpec

from .engines import task_engine, task_settings
from .failed_rows import FailedRows
from .packing import cut
from .task_counts import Meter

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class RowColumns:
    """Names of the input columns: `texts` in the order that predicates count, `kept` are passed on."""

    texts: tuple[str, ...]
    kept: tuple[str, ...]


def run_filter(spec_json: str, columns: RowColumns, batches: Batches) -> Batches:
    """Keep the rows whose every predicate is TRUE. Executor-side, one call per partition."""
    spec, conf = OperatorSpec.from_json(spec_json), task_settings()[0]
    failed, meter = FailedRows(conf["onError"], spec), Meter(spec.name)
    waiting: deque[pa.RecordBatch] = deque()

    def requests() -> Iterator:
        for batch in batches:
            for part in bounded(batch, columns.texts, conf["batch.rows"], conf["batch.bytes"]):
                waiting.append(part)
                yield texts(part, columns.texts)

    def passing() -> Batches:
        for answers in task_engine().rows(spec, requests()):
            meter.took(answers)
            batch = waiting.popleft()
            failed.check(answers, lambda item, p, batch=batch: _text(batch, columns.texts, spec, item, p))
            yield select(batch, columns.kept).filter(pa.array((answers.codes == TRUE).all(axis=1)))
        failed.finish()

    yield from meter.given(passing())


def _text(batch: pa.RecordBatch, names: tuple[str, ...], spec: OperatorSpec, item: int, predicate: int) -> str | None:
    used = spec.predicates[predicate].used
    if not used:
        return ""
    return decoded(batch.column(names[spec.predicates[predicate].arguments[used[0]].column]).slice(item, 1))[0]


def texts(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch | list[list[str]]:
    """The rows as the engine's client takes them. A batch without columns would not know how many it has."""
    return batch.select(list(names)) if names else [[] for _ in range(batch.num_rows)]


def select(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """These columns, as ones that may be NULL, since all batches of a stream have one schema; without any, a column of TRUE
    so that the rows still count."""
    if names:
        return pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=list(names))
    return count(batch.num_rows)


def count(rows: int) -> pa.RecordBatch:
    """Rows without columns of their own."""
    return pa.RecordBatch.from_arrays([pa.array(np.ones(rows, bool))], names=["n"])


def bounded(batch: pa.RecordBatch, names: tuple[str, ...], rows: int, size: int) -> Batches:
    """Slices of at most `rows` rows and about `size` bytes of text (a single row may be larger)."""
    for start, end in cut(text_bytes(batch, names), rows, size):
        yield batch.slice(start, end - start)


def text_bytes(batch: pa.RecordBatch, names: tuple[str, ...]) -> np.ndarray:
    """UTF-8 bytes of each row's texts, int64."""
    total = np.zeros(batch.num_rows, np.int64)
    for name in set(names):
        lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
        total += lengths.to_numpy(zero_copy_only=False)
    return total


def differs_from_previous(columns: list[pa.Array], rows: int) -> np.ndarray:
    """For rows 1, 2, …: whether a column differs from the row before (NULL differs from everything)."""
    differs = np.zeros(max(0, rows - 1), bool)
    for column in columns:
        same = pc.fill_null(pc.equal(column.slice(1), column.slice(0, rows - 1)), False)
        differs |= ~same.to_numpy(zero_copy_only=False)
    return differs
