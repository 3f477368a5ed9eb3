"""Tiles of queries for the attention kernels, laid out on the CPU from the ragged shape of a chunk (numpy only: cheap)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .ragged import Ragged

TILE_FIELDS = 8
STEPS_AROUND = 2  # what a tile of the Hopper kernel takes besides its steps, in steps
LONG = 2  # tiles: a longer segment is tiled on its own, since a tile over two segments reads the keys of both


@dataclass(frozen=True)
class Cut:
    """How a kernel cuts its work: most `queries` of a tile, `run` keys that it loads at a time."""

    queries: int
    run: int


@dataclass(frozen=True)
class Long:
    """The Hopper kernel takes segments from `segment` tokens on, and whatever lies behind a prefix of `prefix` or more.

    Its `programs` share out the tiles of all `heads` of keys.
    """

    cut: Cut
    segment: int
    prefix: int
    programs: int
    heads: int


@dataclass(frozen=True)
class Kernels:
    """`plain` and `shared`: the portable kernel without and with a prefix."""

    plain: Cut
    shared: Cut
    long: Long | None = None


@dataclass(frozen=True)
class TilePlan:
    """What one kernel works on; everything int32.

    `tiles` [tiles, 8]: first query, queries, first run, first partial run, end of runs, first own row, steps of own rows
    that all its queries see, steps of own rows. Run r is `run_counts[r]` neighbouring pool rows from `run_starts[r]`.
    `plain`: how many tiles at the front have no prefix.
    """

    tiles: np.ndarray
    plain: int
    run_starts: np.ndarray
    run_counts: np.ndarray


@dataclass(frozen=True)
class Plan:
    """`short`: for the portable kernel, `long`: for the Hopper kernel. Query i sees the own rows `lows[i]` … `highs[i]`, int32.

    `items` int32 [waves, programs]: column p is what program p works off, tile · heads + head; −1 in the last row: nothing.
    """

    lows: np.ndarray
    highs: np.ndarray
    short: TilePlan
    long: TilePlan
    items: np.ndarray


def plan_all(ragged: Ragged, kernels: Kernels) -> Plan:
    """Queries are all new tokens."""
    starts = np.asarray(ragged.starts, np.int64)
    lengths = np.diff(starts)
    group = _group_of(ragged)
    lows, highs = np.repeat(starts[:-1], lengths), np.arange(starts[-1])
    breaks = _breaks(group, lengths > LONG * _most(kernels, group))
    return _plan(ragged, kernels, starts[:-1][breaks], group[breaks], lows, highs)


def plan_answers(ragged: Ragged, kernels: Kernels) -> Plan:
    """Queries are the last tokens of the answering segments; query i is answer i."""
    starts, answers = np.asarray(ragged.starts, np.int64), np.asarray(ragged.answers, np.int64)
    group = _group_of(ragged)[answers]
    # Where nothing is shared, queries side by side would read each other's keys for nothing.
    breaks = _breaks(group, group < 0)
    return _plan(ragged, kernels, breaks, group[breaks], starts[answers], starts[answers + 1] - 1)


def _most(kernels: Kernels, group: np.ndarray) -> np.ndarray:
    return np.where(group < 0, kernels.plain.queries, kernels.shared.queries)


def _group_of(ragged: Ragged) -> np.ndarray:
    group = np.full(ragged.segments, -1, np.int64)
    for index, g in enumerate(ragged.groups):
        group[g.first : g.last] = index
    return group


def _breaks(group: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """Segments that begin a piece: a run of segments behind one prefix, or one that stays alone."""
    if not len(group):
        return np.empty(0, np.int64)
    new = (group[1:] != group[:-1]) | alone[1:] | alone[:-1]
    return np.flatnonzero(np.concatenate([[True], new]))


def _plan(ragged: Ragged, kernels: Kernels, first, group, lows, highs) -> Plan:
    """`first`, `group` [pieces]: first query, prefix group or −1. Each piece goes to the kernel that suits its keys."""
    prefixes = [g.slots.numpy() for g in ragged.groups]
    lengths = np.diff(first, append=len(lows))
    long = np.zeros(len(first), bool)
    if kernels.long and len(first):
        before, own = np.array([*map(len, prefixes), 0])[group], np.maximum.reduceat(highs - lows, first) + 1
        long = before >= kernels.long.prefix
        # One query alone would leave most of a large tile empty.
        long |= (own >= kernels.long.segment) & (lengths > 1)

    def tiles(chosen: np.ndarray, most: np.ndarray, run: int) -> TilePlan:
        return _tiles(first[chosen], lengths[chosen], group[chosen], most[chosen], lows, highs, prefixes, run)

    large = kernels.long.cut if kernels.long else kernels.shared
    short, long = (
        tiles(~long, _most(kernels, group), kernels.shared.run),
        tiles(long, np.full(len(first), large.queries), large.run),
    )
    lows, highs = (np.ascontiguousarray(a, np.int32) for a in (lows, highs))
    return Plan(lows, highs, short, long, _dealt(long.tiles, kernels.long))


def _dealt(tiles: np.ndarray, long: Long | None) -> np.ndarray:
    """Deal the tiles out in order, as many at a time as there are programs: the longest to whoever has had least."""
    if not len(tiles):
        return np.empty((0, 1), np.int32)
    steps = (tiles[:, 4] - tiles[:, 2] + tiles[:, 7] + 1) // 2
    costs = np.repeat(steps + STEPS_AROUND, long.heads)
    programs = min(long.programs, len(costs))
    items, load = np.full((-(-len(costs) // programs), programs), -1, np.int32), np.zeros(programs)
    for wave, row in enumerate(items):
        cost = costs[wave * programs : (wave + 1) * programs]
        idle, largest = np.argsort(load, kind="stable")[: len(cost)], np.argsort(-cost, kind="stable")
        row[idle] = wave * programs + largest
        load[idle] += cost[largest]
    return items


def _tiles(first, lengths, group, most, lows, highs, prefixes: Sequence[np.ndarray], run: int) -> TilePlan:
    counts = -(-lengths // most)
    piece = np.repeat(np.arange(len(first)), counts)
    # Within a piece from the back: those see most.
    begin = first[piece] + (np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(piece))) * most[piece]
    size = np.minimum(most[piece], first[piece] + lengths[piece] - begin)
    used, index = np.unique(group[group >= 0], return_inverse=True)
    full, rest, run_starts, run_counts = _runs([prefixes[g] for g in used], run)
    tiles = np.zeros((len(piece), TILE_FIELDS), np.int64)
    tiles[:, 0], tiles[:, 1] = begin, size
    behind = group >= 0
    runs = np.zeros((len(first), 3), np.int64)
    runs[behind] = np.stack([full[:-1], rest, full[1:]], 1)[index]
    tiles[:, 2:5] = runs[piece]
    end = begin + size - 1
    low, last = lows[begin], highs[end]
    tiles[:, 5] = low
    tiles[:, 6] = np.where(lows[end] == low, (highs[begin] + 1 - low) // run, 0)
    tiles[:, 7] = -(-(last + 1 - low) // run)
    # Pieces with most work first, so that all end together; tiles of one piece side by side, since they read the same keys.
    steps = np.zeros(len(first), np.int64)
    np.maximum.at(steps, piece, tiles[:, 4] - tiles[:, 2] + tiles[:, 7])
    order = np.lexsort((-steps[piece], behind[piece]))
    as32 = [np.ascontiguousarray(a, np.int32) for a in (tiles[order], run_starts, run_counts)]
    return TilePlan(as32[0], int((~behind[piece]).sum()), *as32[1:])


def _runs(prefixes: Sequence[np.ndarray], run: int):
    """Cut each prefix into runs of neighbouring slots, full ones first.

    Returns (first run of each prefix and the end, first partial run of each prefix, starts, counts).
    """
    owner, first, length = stretches(prefixes)
    pieces = -(-length // run)
    offset = (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * run
    start, count = np.repeat(first, pieces) + offset, np.minimum(run, np.repeat(length, pieces) - offset)
    owner = np.repeat(owner, pieces)
    order = np.lexsort((count < run, owner))
    edges = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(prefixes)))])
    partials = edges[:-1] + np.bincount(owner[count == run], minlength=len(prefixes))
    return edges, partials, start[order], count[order]


def stretches(prefixes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Neighbouring slots of each prefix, in order: (which prefix, first slot, length) of each stretch."""
    slots = np.concatenate([np.empty(0, np.int64), *prefixes])
    ends = np.cumsum([len(p) for p in prefixes], dtype=np.int64)
    new = np.ones(len(slots), bool)
    new[1:] = np.diff(slots) != 1
    new[ends[:-1][ends[:-1] < len(slots)]] = True
    at = np.flatnonzero(new)
    return np.searchsorted(ends, at, side="right"), slots[at], np.diff(at, append=len(slots))
