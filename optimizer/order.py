"""The order of predicates on one relation: those that reject most rows for their cost come first."""

from collections.abc import Hashable, Sequence

Documents = Sequence[tuple[Hashable, float]]


def expected_cost(
    order: Sequence[int], pass_rates: Sequence[float], own: Sequence[float], documents: Documents
) -> float:
    """Cost per row (tokens, or seconds) when predicates are tried in `order` and a row leaves at its first FALSE.

    `own[p]` is paid each time p is asked; `documents[p]` is p's document (any name) and its cost, paid by the first
    predicate about that document.
    """
    cost, reach, seen = 0.0, 1.0, set()
    for p in order:
        name, document = documents[p]
        cost += reach * (own[p] + (0 if name in seen else document))
        seen.add(name)
        reach *= pass_rates[p]
    return cost


def best_order(pass_rates: Sequence[float], own: Sequence[float], documents: Documents) -> tuple[int, ...]:
    """The order of least `expected_cost`, by cost per rejected row, O(n²).

    A document is a job that rejects nothing and precedes its predicates. Sequencing such a forest by the best ratio
    of an initial group is exact: the cost has the adjacent-sequence-interchange property (Ibaraki and Kameda 1984, after Horn
    1972). A group is a document with its best predicates; once it is paid for, predicates stand alone.
    """
    waiting: dict[Hashable, list[int]] = {}
    for p in sorted(range(len(own)), key=lambda p: _ratio(own[p], pass_rates[p])):
        waiting.setdefault(documents[p][0], []).append(p)
    order: list[int] = []
    paid: set[Hashable] = set()
    while waiting:
        groups = {name: _best_group(ps, name in paid, pass_rates, own, documents) for name, ps in waiting.items()}
        name = min(groups, key=lambda name: groups[name][0])
        taken = groups[name][1]
        order += waiting[name][:taken]
        waiting[name] = waiting[name][taken:]
        paid.add(name)
        if not waiting[name]:
            del waiting[name]
    return tuple(order)


def _best_group(
    predicates: Sequence[int], paid: bool, pass_rates: Sequence[float], own: Sequence[float], documents: Documents
) -> tuple[float, int]:
    """Cost per rejected row of the best leading group of one document's predicates, and its size."""
    if paid:
        return _ratio(own[predicates[0]], pass_rates[predicates[0]]), 1
    cost, reach, best = documents[predicates[0]][1], 1.0, (float("inf"), len(predicates))
    for size, p in enumerate(predicates, 1):
        cost += reach * own[p]
        reach *= pass_rates[p]
        best = min(best, (_ratio(cost, reach), size))
    return best


def _ratio(cost: float, pass_rate: float) -> float:
    return cost / max(1e-9, 1 - pass_rate)
