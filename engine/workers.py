"""Threads that take pieces of work from a queue, each computing alone.

Between two attentions a block of rows needs nothing from the others. One block a thread needs no barrier in every
small operation, keeps a block in one core's cache, and when the system takes a core away the other threads go on.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch


class Workers:
    """`count` threads; with 1, the caller's own."""

    def __init__(self, count: int):
        self.count = count
        self._pool = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, thread_name_prefix="quail-rows")
            started = threading.Barrier(count)
            list(self._pool.map(_compute_alone, [started] * count))
            torch.set_num_threads(count)

    def each(self, work: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Run `work` on every item, taken in order; returns when all are done, and raises an error of any."""
        rest = iter(items)
        if self._pool is None:
            _take(work, rest)
        else:
            jobs = [self._pool.submit(_take, work, rest) for _ in range(self.count)]
            wait(jobs)  # all of them, also after an error: nobody writes into memory that its caller has given up
            for job in jobs:
                job.result()

    def split(self, rows: int, most: int, multiple: int) -> list[slice]:
        """Equal blocks of at most `most` rows, a whole number for each thread where there are rows enough."""
        if not rows:
            return []
        blocks = -(-rows // (most * self.count)) * self.count
        size = -(-rows // (blocks * multiple)) * multiple
        return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _compute_alone(started: threading.Barrier) -> None:
    """One inner thread for this thread. Torch gives a thread the number set last, by any, when it first asks; so ask,
    then set, and wait for the others before the caller sets its own number again."""
    torch.get_num_threads()
    torch.set_num_threads(1)
    started.wait()


def _take(work: Callable[[Any], None], rest: Iterator[Any]) -> None:
    """Work until nothing is left; after an error nothing is. `next` on a list's iterator is atomic. Inference mode belongs to
    a thread."""
    with torch.inference_mode():
        try:
            for item in rest:
                work(item)
        except BaseException:
            list(rest)
            raise
