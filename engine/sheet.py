"""The codes and margins of one call while they are filled in, and the rules of NULL, failure and leaving early."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quail_spark.optimizer.plan import FAILED, FALSE, NULL, SKIPPED, TRUE, OperatorSpec

from .evaluator import Answers, Counts


@dataclass(slots=True, eq=False)
class Question:
    """One predicate about given texts. Equal keys mean equal prompts, hence equal answers.

    `length` is the whole prompt in tokens, `document` those of its anchor document. `error` says why it can't be
    answered, in words that follow the row and the predicate.
    """

    key: bytes
    length: int
    document: int
    error: str | None = None


class Sheet:
    """`questions[item][predicate]` is None where a used text is NULL; `names[item]` is how an error names the item.

    `pending[item]` are the predicates still to be answered, in the order in which they are tried.
    """

    def __init__(
        self,
        spec: OperatorSpec,
        names: list[str],
        questions: list[list[Question | None]],
        order: tuple[int, ...],
    ):
        self._spec, self._names, self._questions = spec, names, questions
        shape = (len(questions), len(spec.predicates))
        self._codes = np.full(shape, SKIPPED, np.int8)
        self._margins = np.full(shape, np.nan, np.float32)
        self._errors: list[tuple[int, int, str]] = []
        self._known: dict[bytes, float] = {}
        self._settled = self._requested_tokens = 0
        self._leaves = spec.kind != "answers"  # an item leaves at its first answer that is not TRUE
        self.counts = Counts(rows=len(questions))
        self.pending = [self._start(item, order) for item in range(len(questions))]

    def _start(self, item: int, order: tuple[int, ...]) -> list[int]:
        """Write the NULLs, which cost nothing; return what is pending.

        Where items leave, predicates that must fail come last: a row that another predicate turns away is no error,
        whatever the order.
        """
        questions = self._questions[item]
        nulls = [p for p in order if questions[p] is None]
        if nulls:
            self._codes[item, nulls] = NULL
            if self._leaves:
                return []
        failing = [p for p in order if p not in nulls and questions[p].error]
        able = [p for p in order if p not in nulls and not questions[p].error]
        if self._leaves:
            return able + failing
        for p in failing:
            self._fail(item, p, questions[p].error)
        return able

    def open(self, item: int) -> Iterator[Question]:
        """The questions of an item that may still have to be computed."""
        return (q for p in self.pending[item] if not (q := self._questions[item][p]).error)

    def next(self, item: int) -> list[Question]:
        """Settle what is known about an item; return what must be computed now."""
        pending = self.pending[item]
        for p in [p for p in pending if self._questions[item][p].key in self._known]:
            pending.remove(p)
            if self._settle(item, p) != TRUE and self._leaves:
                pending.clear()
                return []
        if pending and (error := self._questions[item][pending[0]].error):
            self._fail(item, pending[0], error)
            pending.clear()
        return [self._questions[item][p] for p in (pending[:1] if self._leaves else pending)]

    def passed(self, item: int) -> list[Question]:
        """The questions of an item that got TRUE from all its predicates; none of another."""
        return self._questions[item] if (self._codes[item] == TRUE).all() else []

    def remember(self, margins: dict[bytes, float]) -> None:
        """Take over remembered answers."""
        self._known.update(margins)

    def computed(self, margins: dict[bytes, float]) -> dict[bytes, float]:
        """Take over computed answers; return those worth remembering."""
        self._known.update(margins)
        self.counts.evaluations += len(margins)
        return {key: margin for key, margin in margins.items() if math.isfinite(margin)}

    def finish(self) -> Answers:
        """The filled sheet."""
        counts = self.counts
        counts.asked = np.isin(self._codes, (TRUE, FALSE)).sum(axis=0).tolist()
        counts.passed = (self._codes == TRUE).sum(axis=0).tolist()
        counts.remembered = self._settled - counts.evaluations
        counts.reused_tokens = self._requested_tokens - counts.fresh_tokens
        return Answers(self._codes, self._margins, sorted(self._errors), counts)

    def _settle(self, item: int, p: int) -> int:
        question = self._questions[item][p]
        margin = self._known[question.key]
        self._settled += 1
        self._requested_tokens += question.length
        if not math.isfinite(margin):
            self._fail(item, p, "the model's answer is not a finite number")
            return FAILED
        code = TRUE if margin > 0 else FALSE
        self._codes[item, p], self._margins[item, p] = code, margin
        return code

    def _fail(self, item: int, p: int, error: str) -> None:
        self._codes[item, p] = FAILED
        template = self._spec.predicates[p].template
        self._errors.append((item, p, f"{self._names[item]}, predicate {template!r}: {error}"))
