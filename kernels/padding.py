"""Ragged items of similar size, padded to one shape, so that one call serves many of them."""

from collections.abc import Sequence
from itertools import pairwise

import torch

# A batch takes one more item while all its padding together wastes no more (query, key) pairs than about one call costs
# (measured: 0.1 ms), plus this share of its useful pairs.
CALL_PAIRS, PAD_SHARE = 8192, 0.15
MOST_KEYS = 1 << 16  # of one batch, padding included: bounds what is gathered at a time


def similar(sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Split items of (queries, keys) into batches. Returns lists of indices, each ascending."""
    batches: list[list[int]] = []
    widest = longest = useful = 0  # of the last batch: most queries, most keys, pairs that are no padding
    for index in sorted(range(len(sizes)), key=lambda i: sizes[i], reverse=True):
        queries, keys = sizes[index]
        if batches:
            count, most = len(batches[-1]) + 1, max(longest, keys)
            padding = count * widest * most - (useful + queries * keys)
            if padding <= CALL_PAIRS + PAD_SHARE * useful and count * most <= MOST_KEYS:
                batches[-1].append(index)
                longest, useful = most, useful + queries * keys
                continue
        batches.append([index])
        widest, longest, useful = queries, keys, queries * keys
    return [sorted(batch) for batch in batches]


class PaddedRows:
    """Runs of rows (`starts`, `counts`) padded to the longest: gather to [batch, length, …] and back.

    A place of padding repeats its run's last row. Runs that lie behind one another with equal counts are sliced, not
    gathered.
    """

    def __init__(self, starts: Sequence[int], counts: Sequence[int]):
        first, count = torch.tensor(starts), torch.tensor(counts)
        self.batch, self.length = len(counts), max(counts)
        same = min(counts) == self.length
        self.run = None
        if same and all(b - a == self.length for a, b in pairwise(starts)):
            self.run = slice(starts[0], starts[0] + self.batch * self.length)
            self.real = self.places = None
            return
        column = torch.arange(self.length)
        self.rows = (first[:, None] + torch.minimum(column, count[:, None] - 1)).flatten()
        self.real = None if same else column < count[:, None]
        self.places = None if same else self.real.flatten().nonzero().squeeze(1)
        self.targets = self.rows if same else self.rows[self.places]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, …] → [batch, length, …]."""
        flat = x[self.run] if self.run is not None else x.index_select(0, self.rows)
        return flat.unflatten(0, (self.batch, self.length))

    def real_rows(self, part: torch.Tensor) -> torch.Tensor:
        """[batch, length, …] → [rows of all runs, …] without the padding."""
        flat = part.flatten(0, 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """The rows of all runs of `x`, in order; a view where they lie behind one another."""
        return x[self.run] if self.run is not None else x.index_select(0, self.targets)

    def put(self, x: torch.Tensor, rows: torch.Tensor) -> None:
        """Write `rows`, in the order of `take`, to their places in `x`."""
        if self.run is not None:
            x[self.run] = rows
        else:
            x.index_copy_(0, self.targets, rows)
