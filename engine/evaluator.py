"""What the engine process serves: an evaluator opens a session for each stream of one operator's rows."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quail_spark.optimizer.plan import OperatorSpec

if TYPE_CHECKING:  # Spark's Python workers do without it
    from .answer_store import AnswerStore

Texts = list[list[str | None]]  # texts[row][column]


@dataclass
class Counts:
    """Work done for one call. Tokens count prompt tokens; `fresh + reused` is what a cache-less engine would compute."""

    rows: int = 0
    evaluations: int = 0  # distinct (predicate, prompt) forward results computed
    remembered: int = 0  # answers from the memory of answers, the answer store, or a duplicate in the same call
    fresh_tokens: int = 0
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    seconds: float = 0.0  # model time
    asked: list[int] = field(default_factory=list)  # per predicate: rows (or pairs) that got TRUE or FALSE
    passed: list[int] = field(default_factory=list)  # per predicate: rows (or pairs) that got TRUE


@dataclass
class Answers:
    """`codes` int8 [items, predicates] (see optimizer.plan); `margins` float32 of the same shape: log P(TRUE) − log P(FALSE), NaN where not evaluated.

    Items are rows, or for `pairs` all pairs in order (anchor-major). `errors` holds (item, predicate, message)
    for codes FAILED.
    """

    codes: np.ndarray
    margins: np.ndarray
    errors: list[tuple[int, int, str]]
    counts: Counts


class Session(Protocol):
    """The state of one stream: an anchor's KV may be kept from one call to the next. Not thread-safe; sessions of one evaluator may be used from different threads."""

    def rows(self, rows: Texts) -> Answers:
        """Kinds `answers` and `filter`."""

    def pairs(self, anchors: Texts, anchor_ids: list[int], partners: list[Texts]) -> Answers:
        """Kind `pairs`: `partners[i]` is the block for `anchors[i]`; equal adjacent `anchor_ids` are one anchor."""

    def cancel(self) -> None:
        """Nobody waits for the call in progress any more: it ends soon, with an error. From any thread."""

    def close(self) -> None:
        """Drop what the session keeps."""


class Evaluator(Protocol):
    """One model on one device. `store`: where its answers outlive it."""

    store: "AnswerStore | None"

    def open(self, spec: OperatorSpec) -> Session:
        """Start a stream. Raises QuailError when the operator can't be served."""

    def describe(self) -> dict:
        """Model, device, dtype, memory plan: for reports and `doctor`."""

    def close(self) -> None:
        """Free the device, and write what the store has yet to write."""
