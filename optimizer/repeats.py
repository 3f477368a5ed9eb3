"""Questions about one table that stands in a query under several names.

The engine answers equal prompts once, so what one alias was asked costs nothing for another. How much that is follows from
the questions that the rows had passed when they were asked, as in `cardinality` with independent questions: of the later
asking's rows those that passed what the earlier asking's rows had passed were asked before.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from .cardinality import Cardinality
from .logical import AiPredicate, TextRef
from .statistics import TableStats

Passed = Mapping[str, Collection[tuple[Hashable, float]]]  # by relation: questions about it alone, with their rates


def question_key(predicate: AiPredicate, tables: Mapping[str, TableStats]) -> Hashable:
    """Equal for questions that ask the same of the same columns, whatever the aliases."""
    return predicate.template, predicate.layout, tuple(_place(text, tables) for text in predicate.arguments)


def prompt_key(predicate: AiPredicate, anchor: str, tables: Mapping[str, TableStats]) -> Hashable:
    """Equal for questions whose prompts are equal too: the same texts stand first."""
    return question_key(predicate, tables), tuple(_place(text, tables) for text in predicate.front(anchor))


def _place(text: TextRef, tables: Mapping[str, TableStats]) -> tuple[str, str]:
    return tables[text.relation].source or text.relation, text.column


@dataclass(frozen=True)
class Asking:
    """Which rows or combinations a question was asked of: those that `passed` these (place, question) with their rates, and
    of them a `share`, which joins left."""

    passed: frozenset[tuple[Hashable, float]]
    share: float


def asking(relations: tuple[str, ...], sizes: Mapping[str, float], rows: Cardinality, passed: Passed) -> Asking:
    """Of the combinations of `relations` that are left; `sizes`: rows of their tables."""
    expected, found = 1.0, set()
    for place, name in enumerate(relations):
        expected *= sizes[name]
        for question, rate in passed.get(name, ()):
            expected *= rate
            found.add(((place, question), rate))
    share = min(1.0, rows.combinations(relations) / expected) if expected else 0.0
    return Asking(frozenset(found), round(share, 9))


def asked_before(earlier: Iterable[Asking], now: Asking) -> float:
    """Share of what is asked `now` that one of the earlier askings had."""
    new = 1.0
    for each in earlier:
        share = each.share
        for _, rate in each.passed - now.passed:
            share *= rate
        new *= 1 - share
    return 1 - new
