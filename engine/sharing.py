"""What sessions that compute at the same time share: room for the KV of their windows, and who computes which answer."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Condition


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
