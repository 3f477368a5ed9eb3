"""What sessions that compute at the same time share: the model, room for the KV of their windows, who computes which answer, and
whose long wave is being launched."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Protocol, TypeVar

AHEAD = 2  # passes of long waves on the device
MOMENT = 0.02  # seconds: less than the passes of such a wave take, which are no small ones


class FairLock:
    """A lock that goes to who has waited longest. A plain one goes back to the thread that gives it up and takes it again."""

    def __init__(self):
        self._guard, self._waiting, self._held = Lock(), deque(), False

    def __enter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # handed over by the one before

    def __exit__(self, *_) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False


class Launched(Protocol):
    """A part of a wave that the device computes."""

    def wait(self) -> None:
        """Until it is done."""


Part, Started = TypeVar("Part"), TypeVar("Started", bound=Launched)


class Turn:
    """Waves of several passes are launched one after another, at most AHEAD of their passes before the device has done them.

    So a short wave of another session waits for little, and sessions do not all need the next rows at the same time. Thread-safe.
    """

    def __init__(self):
        self._lock = Lock()
        self._launched: deque[Callable[[], None]] = deque()

    def each(self, parts: Sequence[Part], launch: Callable[[Part], Started]) -> list[Started]:
        """`launch` the parts of a wave in order, when it is its turn. A single part needs none."""
        if len(parts) < 2:
            return [launch(part) for part in parts]
        with self._lock:
            started = []
            for part in parts:
                self._admit()
                started.append(launch(part))
                self._launched.append(started[-1].wait)
            return started

    def _admit(self) -> None:
        """Wait until one more pass may be launched.

        When a wave ends, its session follows with a short one in a moment: that goes first, as the device has a pass to do.
        """
        while len(self._launched) >= AHEAD:
            began = time.monotonic()
            self._launched.popleft()()
            if time.monotonic() - began > MOMENT:
                time.sleep(MOMENT)


class Room:
    """Admits windows in the order in which they come, while the KV pages that they hold fit together. Thread-safe.

    A window that is larger than everything is admitted when it is alone, one that holds nothing at once. `pages` None: any number.
    """

    def __init__(self, pages: int | None = None):
        self._pages, self._used = pages, 0
        self._waiting: deque[object] = deque()
        self._changed = Condition()

    @contextmanager
    def taken(self, pages: int) -> Iterator[None]:
        """Wait for room for `pages`, and hold it."""
        with self._changed:
            if pages:
                self._wait_for(pages)
            self._used += pages
        try:
            yield
        finally:
            with self._changed:
                self._used -= pages
                self._changed.notify_all()

    def _wait_for(self, pages: int) -> None:
        me = object()
        self._waiting.append(me)
        try:
            self._changed.wait_for(lambda: self._waiting[0] is me and self._fits(pages))
        finally:
            self._waiting.remove(me)
            self._changed.notify_all()

    def _fits(self, pages: int) -> bool:
        return self._pages is None or not self._used or self._used + pages <= self._pages


class Claims:
    """The keys of the answers that are being computed, each by one session. Thread-safe.

    Who waits for others' keys holds none, so waiting ends.
    """

    def __init__(self):
        self._keys: set[bytes] = set()
        self._changed = Condition()

    @contextmanager
    def taken(self, keys: Iterable[bytes]) -> Iterator[dict[bytes, None]]:
        """Those of `keys` that nobody computes, in order; they are the caller's until the end of the block."""
        with self._changed:
            mine = {key: None for key in keys if key not in self._keys}
            self._keys.update(mine)
        try:
            yield mine
        finally:
            with self._changed:
                self._keys.difference_update(mine)
                self._changed.notify_all()

    def wait(self, keys: Iterable[bytes]) -> None:
        """Return when one of `keys` is no longer computed by anybody."""
        keys = list(keys)
        with self._changed:
            self._changed.wait_for(lambda: any(key not in self._keys for key in keys))
