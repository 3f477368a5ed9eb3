"""How much a question costs, counted and not timed: tokens, attention pairs, KV. The counts of steps add up.

The symbols of the formulas: a run of n new tokens behind k tokens whose KV is kept computes n tokens, n·k pairs with the
kept ones and n(n+1)/2 causal pairs of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Length:
    """Tokens of a text that varies from row to row: `mean` of n and `square`, the mean of n² (attention grows with it).

    `shared`: how many of them, on average, are the beginning of another row's text as well (snapshots of a growing text):
    the engine computes those once.
    """

    mean: float
    square: float
    shared: float = 0.0

    @staticmethod
    def exactly(tokens: float) -> "Length":
        """The same length for every row."""
        return Length(tokens, tokens * tokens)

    @staticmethod
    def of(lengths: Sequence[float]) -> "Length":
        """From the rows' own lengths; at least one."""
        return Length(sum(lengths) / len(lengths), sum(n * n for n in lengths) / len(lengths))

    def __add__(self, other: "Length") -> "Length":
        """One text behind the other; their lengths are taken as independent."""
        square = self.square + other.square + 2 * self.mean * other.mean
        return Length(self.mean + other.mean, square, self.shared + other.shared)


NOTHING = Length(0.0, 0.0)


@dataclass(frozen=True)
class Work:
    """`fresh`: tokens computed. `reused`: prompt tokens that were not, thanks to kept KV. `own_pairs`, `kept_pairs`:
    (query token, key token) pairs within fresh tokens, and of fresh tokens with kept ones. `kv_written`, `kv_read`: tokens
    whose KV goes to memory to be kept, and comes from there. `answers`: questions answered."""

    fresh: float = 0.0
    reused: float = 0.0
    own_pairs: float = 0.0
    kept_pairs: float = 0.0
    kv_written: float = 0.0
    kv_read: float = 0.0
    answers: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))

    def __mul__(self, times: float) -> "Work":
        return Work(*(getattr(self, f.name) * times for f in fields(Work)))

    @property
    def pairs(self) -> float:
        """All attention pairs."""
        return self.own_pairs + self.kept_pairs


def run(new: Length, kept: float = 0.0, answers: float = 0.0) -> Work:
    """One run of `new` tokens behind `kept` tokens of KV. Reading that KV is not in it: several runs may share a read."""
    fresh, share = new.mean - new.shared, new.shared / new.mean if new.mean else 0.0
    return Work(
        fresh=fresh,
        reused=(kept if answers else 0.0) + new.shared,
        own_pairs=((1 - share) ** 2 * new.square + fresh) / 2,
        kept_pairs=fresh * kept + share * (1 - share) * new.square,
        kv_read=new.shared,
        answers=answers,
    )


def ask(document: Length, rest: Length, held: bool = False, keep: bool = False) -> Work:
    """A question about one row: its document, unless its KV is `held`, and the `rest` of the prompt.

    `keep`: the document's KV is written, for a question that comes later.
    """
    if held:
        return run(rest, document.mean, answers=1) + Work(kv_read=document.mean)
    written = document.mean - document.shared if keep or document.shared else 0.0
    return run(document + rest, answers=1) + Work(kv_written=written)


def ask_in_turn(
    rows: float,
    document: Length,
    rests: Sequence[Length],
    pass_rates: Sequence[float],
    shared: bool,
    keep: bool = False,
) -> Work:
    """Questions about each of `rows` documents in this order; a row leaves at its first FALSE.

    `shared`: every question stands behind the document, whose KV stays for the next one (layout `document_first`, or
    `literal` with templates that start alike). Else each question computes the document again. `keep`: it also stays
    for what comes after the last question.
    """
    work, reach = Work(), rows
    for number, (rest, rate) in enumerate(zip(rests, pass_rates, strict=True)):
        more = keep or number + 1 < len(rests)
        work += ask(document, rest, held=shared and number > 0, keep=shared and more) * reach
        reach *= rate
    return work


def ask_pairs(
    anchors: float,
    pairs: float,
    anchor: Length,
    frame: Length,
    tail: Length,
    held: bool = False,
    chunk: float = 32_768,
) -> Work:
    """Questions about `pairs` (anchor, partner): each anchor and the `frame` behind it run once, then `tail` per pair.

    The question may stand in the frame (`document_first`: partner and cue are the tail) or in the tail (a template that
    names the partner first). `held`: the anchors' KV is there from the step before. The KV of anchor and frame is
    read once per forward pass of `chunk` tokens. An anchor without text (`anchor` is NOTHING) shares nothing.
    """
    if not pairs or not anchors:
        return Work()
    prefix = anchor.mean + frame.mean
    first = run(frame, anchor.mean) + Work(kv_read=anchor.mean) if held else run(anchor + frame)
    written = frame.mean if held else prefix - anchor.shared
    passes = max(1.0, pairs / anchors * tail.mean / chunk)
    each = first + Work(kv_written=written, kv_read=passes * prefix)
    work = each * anchors + run(tail, prefix, answers=1) * pairs
    return work + Work(reused=max(-work.reused, -each.fresh * anchors))


def ask_cumulative(histories: float, step: Length, steps: int, rest: Length) -> Work:
    """A question about each of `steps` growing texts of a history: text k is text k−1 and one `step` more.

    Each step runs once, behind the steps before; the question behind each text (agent traces, mail threads).
    """
    work = Work()
    for number in range(steps):
        before = number * step.mean
        work += run(step, before) + Work(kv_read=before, kv_written=step.mean)
        work += run(rest, before + step.mean, answers=1) + Work(kv_read=before + step.mean, reused=-step.mean)
    return work * histories


def pairs_until_true(partners: float, rate: float) -> float:
    """Expected partners asked per anchor when the first TRUE ends it (semi and anti joins): (1 − (1−rate)ⁿ) / rate."""
    return partners if rate <= 0 else min(partners, (1 - (1 - min(rate, 1.0)) ** partners) / rate)
