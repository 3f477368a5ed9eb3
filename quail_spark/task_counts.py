"""What the AI operators of a task did, carried to the driver by Spark's accumulators. Executor-side.

Spark hands an accumulator's values to the driver with the end of a successful task; nothing of a task that fails, or whose
rows are not wanted to the end (LIMIT).
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from quail_spark.engine.evaluator import Answers

# The accumulator's id, known to both ends as Spark's profilers' are (−1, −2), so that it need not be pickled with a function.
TASK_COUNTS = -0x5155_4149
NAMES = ("rows_in", "rows_out", "fresh_tokens", "reused_tokens", "recomputed_tokens")


class TaskCounts(NamedTuple):
    """One operator in one task. `execution` is the id of Spark's query (None: outside of one); `counts` as in NAMES, where
    the rows that come into a join are pairs; `seconds` of the model."""

    operator: str
    execution: str | None
    stage: int
    counts: tuple[int, ...]
    seconds: float


class Meter:
    """Counts what goes through one operator of this task."""

    def __init__(self, operator: str):
        self._operator = operator
        self._counts = dict.fromkeys(NAMES, 0)
        self._seconds = 0.0

    def took(self, answers: Answers) -> None:
        """Answers to a batch came back."""
        counts = answers.counts
        self._counts["rows_in"] += counts.rows
        for name in ("fresh_tokens", "reused_tokens", "recomputed_tokens"):
            self._counts[name] += getattr(counts, name)
        self._seconds += counts.seconds

    def given(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The operator's output, counted; what was counted is sent at its end."""
        for batch in batches:
            self._counts["rows_out"] += batch.num_rows
            yield batch
        self._send()

    def _send(self) -> None:
        from pyspark import TaskContext
        from pyspark.accumulators import _deserialize_accumulator

        task = TaskContext.get()
        if task is not None:
            execution = task.getLocalProperty("spark.sql.execution.id")
            counts = TaskCounts(self._operator, execution, task.stageId(), tuple(self._counts.values()), self._seconds)
            _deserialize_accumulator(TASK_COUNTS, [], Collected()).add([tuple(counts)])


class Collected:
    """Spark's `AccumulatorParam` of lists."""

    def zero(self, value: list) -> list:
        """Nothing yet."""
        return []

    def addInPlace(self, value: list, more: list) -> list:  # Spark's name
        """Both."""
        return value + more
