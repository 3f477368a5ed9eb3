"""How the rows of one operator become answers: duplicates, remembered answers, the order of predicates, waves.

Everything here is the same for a model and for the scripted evaluator. What differs is behind `Answerer`: it turns
predicates and texts into questions, and questions into margins.

A call goes through these steps:
1. `_ask`     every (item, predicate) becomes a `Question`, tokenised outside the model lock; an item is a row or a pair
2. `_order`   the predicates are ordered by cost and pass rate
3. `_window`  for as many items as the KV pages allow: a wave asks every item that has not left its next predicate,
              until nothing is pending. The model lock is held while a pass of it is launched, not while the device
              computes, so other sessions' passes are launched meanwhile
4. `Sheet`    holds codes, margins, errors and counts, and gives the `Answers`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, Protocol

from quail_spark.optimizer.errors import EngineError, QuailError
from quail_spark.optimizer.order import best_order
from quail_spark.optimizer.plan import OperatorSpec, Predicate
from quail_spark.optimizer.statistics import PassRates

from .evaluator import Answers, Counts, Texts
from .memory import AnswerMemory
from .sharing import Claims, FairLock, Room, Turn
from .sheet import Question, Sheet

Request = tuple[int, tuple[str, ...]]  # a predicate's index and the texts of its `used` arguments


class Answerer(Protocol):
    """What a session needs from a model, or from a script. One per session."""

    def questions(self, requests: list[Request]) -> list[Question]:
        """One question per request. Called outside the model lock."""

    def windows(self, pending: list[list[Question]]) -> list["Window"]:
        """Split items, given their pending questions, into groups whose shared KV fits at once; every item once."""

    def launch(
        self, now: list[Question], later: list[Question], counts: Counts, check: Callable[[], None]
    ) -> Callable[[], Sequence[float]]:
        """Start computing `now` (distinct keys), keeping the KV that `later` can use. Takes the model lock, pass by pass.

        Before each pass it calls `check`, which raises when nobody wants the answers any more. The result waits for the margins of
        `now`; it is called once. Adds to the fresh and recomputed tokens and the seconds of `counts`.
        """

    def keep(self, questions: list[Question]) -> None:
        """Drop all KV but what these questions can use. Called under the model lock."""

    def retain(self, questions: list[Question]) -> None:
        """Leave the KV of these questions' documents to the session that asks next. Called under the model lock."""


class Window(NamedTuple):
    """Items that are in work at the same time, and the KV pages that they hold from wave to wave."""

    items: list[int]
    pages: int = 0


@dataclass
class Shared:
    """What the sessions of one evaluator have in common. `model_lock` serialises launching; `room` admits windows; `turn` is
    that of long waves. Who holds the model lock waits for neither."""

    memory: AnswerMemory
    room: Room = field(default_factory=Room)
    claims: Claims = field(default_factory=Claims)
    turn: Turn = field(default_factory=Turn)
    pass_rates: PassRates = field(default_factory=PassRates)
    model_lock: FairLock = field(default_factory=FairLock)


class _Item(NamedTuple):
    """A row, or a pair: the texts that arguments point into, and how an error names it."""

    name: str
    row: Sequence[str | None]
    partner: Sequence[str | None] = ()

    def texts(self, predicate: Predicate, used: tuple[int, ...]) -> tuple[str, ...] | None:
        """The used texts; None when one is NULL."""
        arguments = [predicate.arguments[index] for index in used]
        texts = tuple((self.partner if a.partner else self.row)[a.column] for a in arguments)
        return None if None in texts else texts


class OperatorSession:
    """A `Session` (see evaluator.py) over any `Answerer`."""

    def __init__(self, spec: OperatorSpec, answerer: Answerer, shared: Shared):
        self._spec, self._answerer, self._shared = spec, answerer, shared
        self._cancelled = False
        shared.memory.refresh()

    def rows(self, rows: Texts) -> Answers:
        """Answers for each row; kinds `answers` and `filter`."""
        self._check_kind("answers", "filter")
        return self._evaluate([_Item(f"row {i}", row) for i, row in enumerate(rows)], stays=0)

    def pairs(self, anchors: Texts, anchor_ids: list[int], partners: list[Texts]) -> Answers:
        """Answers for each pair, anchor-major; kind `pairs`. The last anchor's KV stays for the next call."""
        self._check_kind("pairs")
        if not len(anchors) == len(anchor_ids) == len(partners):
            raise QuailError(
                f"got {len(anchors)} anchors, {len(anchor_ids)} anchor ids and {len(partners)} blocks of partners; "
                "accepted: one id and one block for each anchor"
            )
        items = [
            _Item(f"anchor {i}, partner {j}", anchor, partner)
            for i, (anchor, block) in enumerate(zip(anchors, partners, strict=True))
            for j, partner in enumerate(block)
        ]
        blocks = reversed(list(zip(anchor_ids, partners, strict=True)))
        last = takewhile(lambda block: block[0] == anchor_ids[-1], blocks)
        return self._evaluate(items, stays=sum(len(block) for _, block in last))

    def cancel(self) -> None:
        """Nobody wants the answers any more: a call in progress ends with EngineError before its next pass. From any thread."""
        self._cancelled = True

    def close(self) -> None:
        """Drop the KV that is kept for a next call."""
        self._shared.memory.save_soon()
        with self._shared.model_lock:
            self._answerer.keep([])

    def _check_wanted(self) -> None:
        if self._cancelled:
            raise EngineError(f"operator {self._spec.name!r}: nobody waits for the answers of this stream any more")

    def _check_kind(self, *kinds: str) -> None:
        if self._spec.kind not in kinds:
            accepted = " or ".join(kinds)
            raise QuailError(f"operator {self._spec.name!r} is of kind {self._spec.kind!r}; accepted here: {accepted}")

    def _evaluate(self, items: list[_Item], stays: int) -> Answers:
        """Answer `items`; the KV of the last `stays` of them is kept for the next call."""
        questions = self._ask(items)
        sheet = Sheet(self._spec, [item.name for item in items], questions, self._order(questions))
        kept = [q for row in questions[len(items) - stays :] for q in row if q and not q.error]
        windows = self._answerer.windows([list(sheet.open(item)) for item in range(len(items))])
        for window in windows or [Window([])]:
            with self._shared.room.taken(window.pages):
                self._window(sheet, window.items, kept)
        answers = sheet.finish()
        self._shared.pass_rates.observe(self._spec, answers.counts.asked, answers.counts.passed)
        return answers

    def _ask(self, items: list[_Item]) -> list[list[Question | None]]:
        """questions[item][predicate], None for NULL. Each distinct (predicate, texts) becomes one question."""
        predicates = [(predicate, predicate.used) for predicate in self._spec.predicates]
        texts = [[item.texts(*predicate) for predicate in predicates] for item in items]
        requests = list(dict.fromkeys((p, t) for row in texts for p, t in enumerate(row) if t is not None))
        known = dict(zip(requests, self._answerer.questions(requests), strict=True))
        return [[known.get((p, t)) for p, t in enumerate(row)] for row in texts]

    def _order(self, questions: list[list[Question | None]]) -> tuple[int, ...]:
        """The order in which predicates are tried in this call. Answers do not depend on it."""
        own, documents = [], []
        for p, predicate in enumerate(self._spec.predicates):
            asked = [row[p] for row in questions if row[p]] or [Question(b"", 1, 0)]
            document = sum(q.document for q in asked) / len(asked)
            own.append(sum(q.length for q in asked) / len(asked) - document)
            anchor = predicate.used[:1] if predicate.anchor is None else predicate.anchor
            documents.append((tuple(predicate.arguments[index] for index in anchor), document))
        return best_order(self._shared.pass_rates.estimate(self._spec), own, documents)

    def _window(self, sheet: Sheet, window: list[int], kept: list[Question]) -> None:
        """Answer the items of one window, wave by wave; then drop the KV that is not kept for the next call."""
        sheet.remember(self._shared.memory.find({q.key for item in window for q in sheet.open(item)}))
        remaining: list[Question] = []
        passed: list[Question] = []
        try:
            while wave := {q.key: q for item in window for q in sheet.next(item)}:
                self._wave(sheet, window, wave, kept)
            remaining = kept
            if self._spec.retain:
                passed = [q for item in window for q in sheet.passed(item)]
        finally:
            with self._shared.model_lock:
                self._answerer.retain(passed)
                self._answerer.keep(remaining)

    def _wave(self, sheet: Sheet, window: list[int], wave: dict[bytes, Question], kept: list[Question]) -> None:
        """Compute what no other session is computing; where that is nothing, wait for the others' answers."""
        memory, claims = self._shared.memory, self._shared.claims
        with claims.taken(wave) as mine:
            sheet.remember(known := memory.find(mine))
            now = [key for key in mine if key not in known]
            if now:
                later = [q for item in window for q in sheet.open(item) if q.key not in mine]
                questions = [wave[key] for key in now]
                margins = self._answerer.launch(questions, later + kept, sheet.counts, self._check_wanted)
                memory.add(sheet.computed(dict(zip(now, map(float, margins()), strict=True))))
        others = wave.keys() - mine
        if others and not mine:
            claims.wait(others)
        sheet.remember(memory.find(others))
