"""Tiles of queries for the attention kernel, laid out on the CPU from the ragged shape of a chunk (numpy only: cheap)."""

from dataclasses import dataclass

import numpy as np

from .ragged import Ragged

TILE_FIELDS = 8
LONG = 2  # tiles: a longer segment is tiled on its own, since a tile over two segments reads the keys of both


@dataclass(frozen=True)
class TilePlan:
    """What one launch works on; everything int32.

    `tiles` [tiles, 8]: first query, queries, first run, first partial run, end of runs, three unused. Query i sees the own
    rows `lows[i]` … `highs[i]`; run r is `run_counts[r]` neighbouring pool rows from `run_starts[r]`. `plain`: how many
    tiles at the front have no prefix.
    """

    tiles: np.ndarray
    plain: int
    lows: np.ndarray
    highs: np.ndarray
    run_starts: np.ndarray
    run_counts: np.ndarray


def plan_all(ragged: Ragged, tiles: tuple[int, int], run: int) -> TilePlan:
    """Queries are all new tokens. `tiles`: most queries of a tile without and with a prefix; `run`: pool rows that the kernel loads at a time."""
    starts = np.asarray(ragged.starts, np.int64)
    lengths = np.diff(starts)
    group = _group_of(ragged)
    lows, highs = np.repeat(starts[:-1], lengths), np.arange(starts[-1])
    tile = np.where(group < 0, *tiles)
    breaks = _breaks(group, lengths > LONG * tile)
    return _plan(ragged, starts[:-1][breaks], starts[-1], group[breaks], lows, highs, tile[breaks], run)


def plan_answers(ragged: Ragged, tile: int, run: int) -> TilePlan:
    """Queries are the last tokens of the answering segments; query i is answer i."""
    starts, answers = np.asarray(ragged.starts, np.int64), np.asarray(ragged.answers, np.int64)
    group = _group_of(ragged)[answers]
    # Where nothing is shared, queries side by side would read each other's keys for nothing.
    breaks = _breaks(group, group < 0)
    tile = np.full(len(breaks), tile)
    return _plan(ragged, breaks, len(answers), group[breaks], starts[answers], starts[answers + 1] - 1, tile, run)


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


def _plan(ragged, first, queries, group, lows, highs, tile, run) -> TilePlan:
    """`first`, `group`, `tile` [pieces]: first query, prefix group or −1, most queries of a tile."""
    lengths = np.diff(first, append=queries)
    counts = -(-lengths // tile)
    piece = np.repeat(np.arange(len(first)), counts)
    # Within a piece from the back: those see most.
    ordinal = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(piece))
    begin = first[piece] + ordinal * tile[piece]
    size = np.minimum(tile[piece], first[piece] + lengths[piece] - begin)
    full, rest, run_starts, run_counts = _runs([g.slots.numpy() for g in ragged.groups], run)
    prefix = np.concatenate([np.diff(full), [0]]) * run  # the last entry: no group
    tiles = np.zeros((len(piece), TILE_FIELDS), np.int64)
    tiles[:, 0], tiles[:, 1] = begin, size
    g = group[piece]
    behind = g >= 0
    tiles[behind, 2], tiles[behind, 3], tiles[behind, 4] = full[g[behind]], rest[g[behind]], full[g[behind] + 1]
    own = np.maximum.reduceat(highs - lows, first)[piece] if len(first) else np.empty(0, np.int64)
    order = np.lexsort((-(prefix[g] + own), behind))
    as32 = [np.ascontiguousarray(a, np.int32) for a in (tiles[order], lows, highs, run_starts, run_counts)]
    return TilePlan(as32[0], int(len(piece) - behind.sum()), *as32[1:])


def _runs(prefixes: list[np.ndarray], run: int):
    """Cut each prefix into runs of neighbouring slots, full ones first.

    Returns (first run of each prefix and the end, first partial run of each prefix, starts, counts).
    """
    edges, partials, starts, counts = [0], [], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for slots in prefixes:
        at = np.concatenate([[0], np.flatnonzero(np.diff(slots) != 1) + 1])[: len(slots)]
        length = np.diff(at, append=len(slots))
        pieces = -(-length // run)
        offset = (np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * run
        start, count = np.repeat(slots[at], pieces) + offset, np.minimum(run, np.repeat(length, pieces) - offset)
        order = np.argsort(count < run, kind="stable")
        starts.append(start[order])
        counts.append(count[order])
        partials.append(edges[-1] + int((count == run).sum()))
        edges.append(edges[-1] + len(start))
    return np.asarray(edges), np.asarray(partials, np.int64), np.concatenate(starts), np.concatenate(counts)
