"""Sets of rows as numbers: which combinations of rows meet, and which rows they stand for. numpy, no text."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from quail_spark.optimizer.errors import EngineError

Rows = dict[str, np.ndarray]  # numbers of rows (int64) by relation, all equally long: one combination a place


def take(rows: Rows, at: np.ndarray | slice) -> Rows:
    """The combinations at these places."""
    return {name: numbers[at] for name, numbers in rows.items()}


def concatenated(parts: Sequence[Rows]) -> Rows:
    """One behind the other; at least one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def distinct(rows: Rows, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Distinct combinations of some relations, int64 [n, len(names)] in ascending order, and for each place which it has.

    Without names all places have the same one.
    """
    count = len(next(iter(rows.values())))
    if not names:
        return np.zeros((min(1, count), 0), np.int64), np.zeros(count, np.int64)
    _, first, place = np.unique(_one_number([rows[name] for name in names]), return_index=True, return_inverse=True)
    return np.stack([rows[name][first] for name in names], axis=1), place


def meeting(left: int, right: int, keys: Sequence[tuple[Sequence, Sequence]]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (i, j) of 0 … left−1 and 0 … right−1 whose `keys` (values of both sides) are equal; NULL equals nothing.

    Ordered by i. Without keys all pairs.
    """
    if not keys:
        return np.repeat(np.arange(left), right), np.tile(np.arange(right), left)
    places: dict[tuple, list[int]] = {}
    for j, values in enumerate(zip(*(each[1] for each in keys), strict=True)):
        if None not in values:
            places.setdefault(values, []).append(j)
    found = [places.get(values, ()) for values in zip(*(each[0] for each in keys), strict=True)]
    i = np.repeat(np.arange(left), list(map(len, found)))
    return i, np.array([j for each in found for j in each], np.int64)


def members(pairs: tuple[np.ndarray, np.ndarray], left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For pairs of sets all pairs of their members: `left[m]` and `right[m]` say whose member m is."""
    (by_left, left_start, left_count), (by_right, right_start, right_count) = map(_by_set, (left, right))
    i, j = pairs
    if not len(i):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sizes = left_count[i] * right_count[j]
    pair = np.repeat(np.arange(len(i)), sizes)
    offset = np.arange(len(pair)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    inner = right_count[j][pair]
    return by_left[left_start[i[pair]] + offset // inner], by_right[right_start[j[pair]] + offset % inner]


def runs(values: np.ndarray, most_values: int, most_rows: int | None = None) -> Iterator[tuple[int, int]]:
    """(start, end) of runs of ascending `values`, at most so many different ones and, if given, so many places each."""
    starts = np.flatnonzero(np.diff(values, prepend=-1 if not len(values) else values[0] - 1))
    edges = [*starts[::most_values].tolist(), len(values)]
    for start, end in pairwise(edges):
        for part in range(start, end, most_rows or max(1, end - start)):
            yield part, min(end, part + (most_rows or end - start))


def _by_set(sets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Members in the order of their sets, where each set starts, and how many it has."""
    count = np.bincount(sets)
    return np.argsort(sets, kind="stable"), np.cumsum(count) - count, count


def _one_number(columns: Sequence[np.ndarray]) -> np.ndarray:
    """A number for each combination, in the order of the columns."""
    code, room = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        room *= size
        code = code * size + column
    if room >= 2**63:
        raise EngineError(f"combinations of {len(columns)} relations need {room} numbers; accepted: below 2^63")
    return code
