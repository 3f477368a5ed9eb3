"""Which side of one AI join keeps its KV (the anchor), from what Spark knows of both sides. `joins` plans several joins."""

from collections.abc import Callable
from dataclasses import dataclass

from .statistics import BYTES_PER_TOKEN, SPREAD
from .work import Length, Work, ask_pairs

PROMPT_TOKENS = Length.exactly(40.0)  # question and answer cue, behind the anchor once


@dataclass(frozen=True)
class SideSize:
    """What is known of one side: rows, average UTF-8 bytes of the texts the prompt reads, bytes of the whole. None: unknown."""

    rows: int | None
    text_bytes: float | None
    total_bytes: int | None = None

    @property
    def length(self) -> Length:
        """Tokens of the texts; they must be known."""
        tokens = self.text_bytes / BYTES_PER_TOKEN
        return Length(tokens, SPREAD * tokens**2)


def join_work(anchor: SideSize, partner: SideSize) -> Work:
    """Work of a cross join: every anchor once, every partner once per anchor. Needs rows and text bytes."""
    pairs = float(anchor.rows * partner.rows)
    return ask_pairs(float(anchor.rows), pairs, anchor.length, PROMPT_TOKENS, partner.length)


def choose_anchor(left: SideSize, right: SideSize, cost: Callable[[Work], float] | None = None) -> int | None:
    """0: the left side, 1: the right side, None: too little is known (the caller keeps the written order).

    `cost`: seconds of work (a `Roofline`, say); fresh tokens without it.
    """
    if None in (left.rows, right.rows):
        return None
    if None in (left.text_bytes, right.text_bytes):
        if not left.rows or not right.rows or None in (left.total_bytes, right.total_bytes):
            return None
        left = SideSize(left.rows, left.total_bytes / left.rows)
        right = SideSize(right.rows, right.total_bytes / right.rows)
    cost = cost or (lambda work: work.fresh)
    return 0 if cost(join_work(left, right)) <= cost(join_work(right, left)) else 1
