"""What is known of tables and answers before a query runs, each number with its source, for EXPLAIN."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from .plan import OperatorSpec
from .work import Length

BYTES_PER_TOKEN = 4.0  # English text with the tokenizers of today's models
DEFAULT_PASS_RATE = 0.2
PRIOR_WEIGHT = 20  # a hint counts as this many observed rows
DEFAULT_ROWS = 1000.0
DEFAULT_TOKENS = 200.0
SPREAD = 1.43  # mean of n² over squared mean, for lognormal lengths with σ = 0.6 such as reviews: exp(σ²)
MOST_SAMPLED = 1000
LEAST_SHARED = 0.05
UNKNOWN_BYTES = 1 << 62  # Spark's stand-in for "not known" is Long.MaxValue; products of it are as large


class Number(NamedTuple):
    """A value and where it is from."""

    value: float
    source: str

    def __str__(self) -> str:
        return f"{self.value:,.6g} ({self.source})"


@dataclass(frozen=True)
class TextStats:
    """Tokens of a text column per row: the mean, and the mean of squares over the squared mean (1: all equally long).

    `shared`: share of them that another row's text begins with as well.
    """

    tokens: Number
    spread: float = SPREAD
    shared: float = 0.0

    @property
    def length(self) -> Length:
        """For the formulas of `work`."""
        return Length(self.tokens.value, self.spread * self.tokens.value**2, self.shared * self.tokens.value)


@dataclass(frozen=True)
class TableStats:
    """Rows of a relation, its text columns, and distinct values of columns where known, by name.

    `source`: relations with the same one are the same rows under several names (None: nothing is known).
    """

    rows: Number
    texts: Mapping[str, TextStats] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    source: str | None = None

    def text(self, column: str) -> TextStats:
        """Statistics of a column; an assumption for one of which nothing is known."""
        return self.texts.get(column) or TextStats(Number(DEFAULT_TOKENS, "assumed"))


def count_bytes(text: str) -> float:
    """Tokens of a text by its UTF-8 bytes."""
    return len(text.encode()) / BYTES_PER_TOKEN


def sampled_text(texts: Sequence[str | None], count: Callable[[str], float] = count_bytes) -> TextStats | None:
    """From the first `MOST_SAMPLED` texts of a sample; `count` gives the tokens of a text. None: no text among them."""
    sample = [text for text in texts[:MOST_SAMPLED] if text is not None]
    lengths = [count(text) for text in sample]
    if not lengths or not sum(lengths):
        return None
    length = Length.of(lengths)
    spread = length.square / length.mean**2
    return TextStats(Number(length.mean, f"sample of {len(lengths):,}"), spread, _shared(sample))


def _shared(texts: Sequence[str]) -> float:
    """Share of the characters that a text has in common with the beginning of another one; 0 for what happens by chance."""
    ordered = sorted(texts)
    common = sum(_common(one, other) for one, other in pairwise(ordered))
    share = common / max(1, sum(map(len, ordered)))
    return share if share >= LEAST_SHARED else 0.0


def _common(one: str, other: str) -> int:
    """Characters of the common beginning, by halving."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def table_stats(
    columns: Sequence[str],
    rows: int | None = None,
    total_bytes: int | None = None,
    average_bytes: Mapping[str, float] | None = None,
    samples: Mapping[str, Sequence[str | None]] | None = None,
    count: Callable[[str], float] = count_bytes,
) -> TableStats:
    """Statistics of a relation of which `columns` are text that a prompt reads.

    `rows` and `total_bytes` are a plan's statistics (None or Spark's Long.MaxValue: unknown), `average_bytes` column
    statistics (avgLen), `samples` some values of a column. A column's tokens come from the first that is there: sample,
    column statistics, bytes of the whole over rows; rows from the plan, or bytes of the whole over those of the texts.
    """
    if total_bytes is not None and total_bytes >= UNKNOWN_BYTES:
        total_bytes = None
    texts = {}
    for column in columns:
        if known := sampled_text((samples or {}).get(column, ()), count):
            texts[column] = known
        elif (average := (average_bytes or {}).get(column)) is not None:
            texts[column] = TextStats(Number(average / BYTES_PER_TOKEN, "column statistics"))
    unknown = [column for column in columns if column not in texts]
    if unknown and rows and total_bytes is not None:
        share = max(1.0, (total_bytes / rows / BYTES_PER_TOKEN - _tokens(texts)) / len(unknown))
        texts |= {column: TextStats(Number(share, "size / rows")) for column in unknown}
    texts |= {c: TextStats(Number(DEFAULT_TOKENS, "assumed")) for c in unknown if c not in texts}
    return TableStats(_rows(rows, total_bytes, texts), {column: texts[column] for column in columns})


def _tokens(texts: Mapping[str, TextStats]) -> float:
    return sum(text.tokens.value for text in texts.values())


def _rows(rows: int | None, total_bytes: int | None, texts: Mapping[str, TextStats]) -> Number:
    if rows is not None:
        return Number(float(rows), "table statistics")
    if total_bytes is not None and texts:
        return Number(max(1.0, total_bytes / BYTES_PER_TOKEN / max(1.0, _tokens(texts))), "size / text length")
    return Number(DEFAULT_ROWS, "assumed")


def pass_rate(hint: float | None, asked: int = 0, passed: int = 0) -> Number:
    """Expected share of TRUE: the hint, else 0.2, moved by what earlier runs observed."""
    prior = DEFAULT_PASS_RATE if hint is None else hint
    if asked:
        return Number((prior * PRIOR_WEIGHT + passed) / (PRIOR_WEIGHT + asked), f"{asked:,} answers before")
    return Number(prior, "assumed" if hint is None else "hint")


class PassRates:
    """Observed answers per operator name, shared by all sessions of an evaluator. Thread-safe."""

    def __init__(self):
        self._observed: dict[tuple, tuple[list[int], list[int]]] = {}
        self._lock = Lock()

    def observe(self, spec: OperatorSpec, asked: Sequence[int], passed: Sequence[int]) -> None:
        """Add one call's answers, per predicate."""
        with self._lock:
            totals = self._observed.setdefault(_identity(spec), ([0] * len(asked), [0] * len(asked)))
            for total, new in zip(totals, (asked, passed), strict=True):
                total[:] = [a + b for a, b in zip(total, new, strict=True)]

    def numbers(self, spec: OperatorSpec) -> list[Number]:
        """Expected share of TRUE per predicate: the hint (or the default), moved by what was observed."""
        with self._lock:
            nothing = [0] * len(spec.predicates)
            asked, passed = self._observed.get(_identity(spec), (nothing, nothing))
            return [pass_rate(p.selectivity, n, t) for p, n, t in zip(spec.predicates, asked, passed, strict=True)]

    def estimate(self, spec: OperatorSpec) -> list[float]:
        """The values of `numbers`."""
        return [number.value for number in self.numbers(spec)]


def _identity(spec: OperatorSpec) -> tuple:
    return spec.name, tuple((p.template, p.arguments) for p in spec.predicates)
