"""Runs are as long as their bounds allow, and nothing is lost or reordered."""

import random

import pytest

from quail_spark.packing import cut


@pytest.mark.parametrize("seed", range(50))
def test_cut(seed):
    draw = random.Random(seed)
    length = draw.choice([0, 1, 2, 40])
    sizes = [draw.randrange(0, 30) for _ in range(length)]
    counts = [draw.randrange(0, 5) for _ in range(length)]
    breaks = [draw.random() < 0.1 for _ in range(length)]
    most, most_size = draw.randrange(1, 12), draw.randrange(1, 80)
    cuts = cut(sizes, most, most_size, counts, breaks)
    assert [i for start, end in cuts for i in range(start, end)] == list(range(length))

    def fits(start, end):
        one = end - start == 1
        return one or (
            sum(counts[start:end]) <= most and sum(sizes[start:end]) <= most_size and not any(breaks[start + 1 : end])
        )

    assert all(fits(start, end) for start, end in cuts)
    assert not any(fits(start, end + 1) for start, end in cuts if end < length)
    plain = cut(sizes, most, most_size)
    assert all(end - start <= most for start, end in plain)
