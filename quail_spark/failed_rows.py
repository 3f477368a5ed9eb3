"""What becomes of rows that the engine could not answer (`spark.quail.onError`). Executor-side."""

import logging
from collections.abc import Callable

import numpy as np

from quail_spark.engine.evaluator import Answers
from quail_spark.optimizer.errors import RowError
from quail_spark.optimizer.plan import FAILED, FALSE, TRUE, OperatorSpec

SHOWN = 60  # characters of a row's text in a message
ALL_FAILED_FROM = 2  # failed rows of one task of which none was answered: a cause that is not the row's

_log = logging.getLogger(__name__)


class FailedRows:
    """The failures of one operator in one task."""

    def __init__(self, on_error: str, spec: OperatorSpec):
        """`on_error`, `fail` or `null`, is for predicates without `max_error_ratio`; such a predicate may fail so often."""
        self._spec = spec
        self._ratios = [predicate.max_error_ratio for predicate in spec.predicates]
        self._raises = [on_error == "fail" and ratio is None for ratio in self._ratios]
        self.failed, self.answered = np.zeros((2, len(spec.predicates)), int)
        self._first = [""] * len(spec.predicates)

    def check(self, answers: Answers, text: Callable[[int, int], str | None]) -> None:
        """Look through the answers to one batch. `text(item, predicate)` is what the item's first argument holds.

        Raises RowError for the first failure where `on_error` is `fail`.
        """
        self.count(answers)
        for item, predicate, message in answers.errors:
            self.add(text(item, predicate), predicate, message)

    def count(self, answers: Answers) -> None:
        """Count the answers and failures of one batch; the failures that matter follow by `add`."""
        self.answered += ((answers.codes == TRUE) | (answers.codes == FALSE)).sum(axis=0)
        self.failed += (answers.codes == FAILED).sum(axis=0)

    def add(self, text: str | None, predicate: int, message: str) -> None:
        """One failure. Raises RowError where `on_error` is `fail`."""
        if not self._first[predicate] or self._raises[predicate]:
            self._first[predicate] = self._describe(text, predicate, message)
        if self._raises[predicate]:
            raise RowError(
                f"{self._first[predicate]} (spark.quail.onError is fail; accepted: null, which answers NULL)"
            )

    def finish(self) -> None:
        """At the end of the task; logs how many answers failed. Raises RowError when more failed than a predicate allows,
        and when answers failed and none was given."""
        for ratio, failed, answered, first in zip(self._ratios, self.failed, self.answered, self._first, strict=True):
            if ratio is not None and failed > ratio * (failed + answered):
                raise RowError(
                    f"{failed} of {failed + answered} rows of a task could not be answered, and max_error_ratio is "
                    f"{ratio}; accepted: at most that share. The first: {first}"
                )
        failed, answered = int(self.failed.sum()), int(self.answered.sum())
        first = next((first for first in self._first if first), "")
        if failed >= ALL_FAILED_FROM and not answered and None in self._ratios:
            raise RowError(f"none of {failed} rows of a task could be answered, so the cause is not one row: {first}")
        if failed:
            _log.warning("%d of %d answers are NULL because of errors; the first: %s", failed, failed + answered, first)

    def _describe(self, text: str | None, predicate: int, message: str) -> str:
        text = text or ""
        start = text if len(text) <= SHOWN else text[:SHOWN] + "…"
        template = self._spec.predicates[predicate].template
        return (
            f"the AI predicate {template!r} can't be answered for the row whose text starts with {start!r}: {message}"
        )
