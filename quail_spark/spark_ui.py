"""AI operators in Spark's own UI: under their names, with what they counted. Driver-side, classic Spark.

A strategy gives the plan's nodes their names and metrics. What tasks count comes through an accumulator (see task_counts.py)
and is added to the metrics of the node and to the accumulators of the stage.
"""

import logging

from quail_spark.optimizer.errors import SetupError

from .jvm import new_instance
from .scala import JavaObject
from .task_counts import TASK_COUNTS, Collected, TaskCounts

_log = logging.getLogger(__name__)


class SparkUi:
    """What one driver JVM needs once."""

    def __init__(self, spark):
        from pyspark.accumulators import Accumulator

        self._builder = None
        try:
            self._builder = new_instance(spark, "AiOperatorStrategyBuilder")
        except SetupError as error:
            _log.warning("Spark's UI shows AI operators as MapInArrow, without counts: %s", error)
        Accumulator(TASK_COUNTS, [], _Forwarded(self))  # its constructor registers it

    def attach(self, extensions: JavaObject) -> None:
        """Name the operators of all sessions that share these extensions."""
        if self._builder is not None:
            extensions.injectPlannerStrategy(self._builder)

    def add(self, counts: TaskCounts) -> None:
        """Show what a task did. Called while Spark's scheduler waits; a failure is no reason to end a job."""
        context = _context()
        if self._builder is None or context is None:
            return
        try:
            where = counts.operator, counts.execution, counts.stage
            self._builder.add(context, *where, list(counts.counts), counts.seconds)
        except Exception:
            self._builder = None
            _log.warning("Spark's UI shows no more counts of AI operators", exc_info=True)

    def tasks(self, operator: str) -> tuple[int, int]:
        """Finished and all tasks of the running stages that have this operator; (0, 0) where that is not known."""
        context = _context()
        if self._builder is None or context is None:
            return 0, 0
        try:
            finished, every = self._builder.tasks(context, operator)
        except Exception:  # the stage is over, or Spark is about to end
            return 0, 0
        return finished, every


class _Forwarded(Collected):
    """At the driver's end of the accumulator: a task's value goes on at once, none is kept."""

    def __init__(self, ui: SparkUi):
        self._ui = ui

    def addInPlace(self, value: list, more: list) -> list:
        """`more` is what one task sent."""
        for counts in more:
            self._ui.add(TaskCounts(*counts))
        return value


def _context() -> JavaObject | None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return None if context is None or context._jsc is None else context._jsc.sc()
