"""What sessions that compute at the same time share: room for the KV of their windows, who computes which answer, and whose
long wave is being launched."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock

AHEAD = 2  # passes of long waves on the device
MOMENT = 0.02  # seconds: less than the passes of such a wave take, which are no small ones


class Turn:
    """Waves of several passes are launched one after another, at most AHEAD of their passes before the device has done them.

    So a short wave of another session waits for little, and sessions do not all need the next rows at the same time. Thread-safe.
    """

    def __init__(self):
        self._lock = Lock()
        self._launched: deque[Callable[[], None]] = deque()

    @contextmanager
    def taken(self, passes: int) -> Iterator[None]:
        """Wait for the turn of a wave of so many passes, and hold it. One pass needs none."""
        if passes < 2:
            yield
            return
        with self._lock:
            yield

    def admit(self) -> None:
        """Wait until one more pass may be launched. The turn is the caller's.

        When a wave ends, its session follows with a short one in a moment: that goes first, as the device has a pass to do.
        """
        while len(self._launched) >= AHEAD:
            began = time.monotonic()
            self._launched.popleft()()
            if time.monotonic() - began > MOMENT:
                time.sleep(MOMENT)

    def launched(self, wait: Callable[[], None]) -> None:
        """A pass was launched; `wait` waits for it. The turn is the caller's."""
        self._launched.append(wait)


class Room:
    """Admits windows while the KV pages that they hold fit together. Thread-safe.

    A window that is larger than everything is admitted when it is alone. `pages` None: any number.
    """

    def __init__(self, pages: int | None = None):
        self._pages, self._used = pages, 0
        self._changed = Condition()

    @contextmanager
    def taken(self, pages: int) -> Iterator[None]:
        """Wait for room for `pages`, and hold it."""
        with self._changed:
            self._changed.wait_for(lambda: self._pages is None or not self._used or self._used + pages <= self._pages)
            self._used += pages
        try:
            yield
        finally:
            with self._changed:
                self._used -= pages
                self._changed.notify_all()


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
