"""Threads over blocks of rows."""

import threading
import time

import pytest
import torch

from quail_spark.engine.workers import Workers


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_item_once(count):
    workers, seen, threads = Workers(count), [], set()

    def work(item):
        assert torch.is_inference_mode_enabled()
        threads.add(threading.get_ident())
        seen.append(item)

    for items in (range(100), range(0), range(1)):
        seen.clear()
        workers.each(work, items)
        assert sorted(seen) == list(items)
    assert len(threads) <= count and (threading.get_ident() in threads) == (count == 1)


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_reaches_the_caller_and_the_threads_live_on(count):
    workers, done = Workers(count), []

    def work(item):
        if item == 3:
            raise ValueError("item 3")
        done.append(item)

    with pytest.raises(ValueError, match="item 3"):
        workers.each(work, range(10))
    workers.each(done.append, ["after"])
    assert done[-1] == "after"


def test_nobody_works_on_after_the_error_has_reached_the_caller():
    workers, started, working = Workers(2), threading.Event(), []

    def work(item):
        if item == 0:
            started.wait(60)
            raise ValueError("item 0")
        working.append(item)
        started.set()
        time.sleep(0.2)
        working.remove(item)

    with pytest.raises(ValueError, match="item 0"):
        workers.each(work, range(10))
    assert working == []


def test_threads_compute_alone_and_the_caller_with_all():
    workers, inner = Workers(3), []
    workers.each(lambda _: inner.append(torch.get_num_threads()), range(6))
    assert set(inner) == {1} and torch.get_num_threads() == 3
    torch.set_num_threads(1)


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("rows", [0, 16, 48, 256, 272, 1000, 4096, 5008])
def test_blocks(count, rows):
    workers = Workers.__new__(Workers)
    workers.count = count
    blocks = workers.split(rows, 256, 16)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(rows))
    sizes = [block.stop - block.start for block in blocks]
    assert all(size <= 256 for size in sizes) and len(set(sizes[:-1])) <= 1
    assert len(blocks) >= min(count, rows // 32)  # work for every thread
