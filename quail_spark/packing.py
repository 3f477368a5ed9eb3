"""Cut a sequence into consecutive runs, bounded in number and size. Executor-side."""

from collections.abc import Sequence
from itertools import repeat

Cuts = list[tuple[int, int]]


def cut(sizes: Sequence[int], most: int, most_size: int, counts=None, breaks=None) -> Cuts:
    """(start, end) of each run: at most `most` items and `most_size` together; a single item may exceed them.

    `counts[i]` is how many item i stands for (1 by default); a run also ends before an item with `breaks[i]`.
    """
    cuts: Cuts = []
    start, number, size = 0, 0, 0
    counts = repeat(1) if counts is None else counts
    breaks = repeat(False) if breaks is None else breaks
    for i, (own, count, new) in enumerate(zip(sizes, counts, breaks, strict=False)):
        if i > start and (new or number + count > most or size + own > most_size):
            cuts.append((start, i))
            start, number, size = i, 0, 0
        number += count
        size += own
    if len(sizes) > start:
        cuts.append((start, len(sizes)))
    return cuts
