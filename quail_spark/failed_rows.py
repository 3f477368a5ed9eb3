"""What becomes of rows that the engine could not answer (`spark.quail.onError`). Executor-side."""

import logging
from collections.abc import Callable

from quail_spark.engine.evaluator import Answers
from quail_spark.optimizer.errors import RowError
from quail_spark.optimizer.plan import FAILED, FALSE, TRUE, OperatorSpec

SHOWN = 60  # characters of a row's text in a message
ALL_FAILED_FROM = 2  # failed rows of one task of which none was answered: a cause that is not the row's

_log = logging.getLogger(__name__)


class FailedRows:
    """The failures of one operator in one task."""

    def __init__(self, on_error: str, spec: OperatorSpec):
        """`on_error`: `fail` or `null`."""
        self._raises, self._spec = on_error == "fail", spec
        self.failed = self.answered = 0
        self._first = ""

    def check(self, answers: Answers, text: Callable[[int, int], str | None]) -> None:
        """Look through the answers to one batch. `text(item, predicate)` is what the item's first argument holds.

        Raises RowError for the first failure where `on_error` is `fail`.
        """
        self.answered += int(((answers.codes == TRUE) | (answers.codes == FALSE)).sum())
        self.failed += int((answers.codes == FAILED).sum())
        for item, predicate, message in answers.errors:
            if not self._first or self._raises:
                self._first = self._describe(text(item, predicate), predicate, message)
            if self._raises:
                raise RowError(f"{self._first} (spark.quail.onError is fail; accepted: null, which answers NULL)")

    def finish(self) -> None:
        """At the end of the task. Raises RowError when rows failed and none was answered; logs how many did."""
        if self.failed >= ALL_FAILED_FROM and not self.answered:
            raise RowError(
                f"none of {self.failed} rows of a task could be answered, so the cause is not one row: {self._first}"
            )
        if self.failed:
            _log.warning(
                "%d of %d answers are NULL because of errors; the first: %s",
                self.failed,
                self.failed + self.answered,
                self._first,
            )

    def _describe(self, text: str | None, predicate: int, message: str) -> str:
        text = text or ""
        start = text if len(text) <= SHOWN else text[:SHOWN] + "…"
        template = self._spec.predicates[predicate].template
        return (
            f"the AI predicate {template!r} can't be answered for the row whose text starts with {start!r}: {message}"
        )
