"""The memory of answers: equal prompts are computed once per engine process, whatever call or session they come in, and
once for all engines that share a store."""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

from .answer_store import AnswerStore


class AnswerMemory:
    """Least-recently-used map from a prompt's key (16 bytes) to its margin. Thread-safe.

    Holds successes only, so a failure is tried again. `capacity` 0 remembers nothing. What is not here is looked for in
    the `store`, if there is one, and what is added goes there too.
    """

    def __init__(self, capacity: int, store: AnswerStore | None = None):
        self.capacity, self.store = capacity, store
        self._margins: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._margins)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, float]:
        """The margins of those keys that are remembered; they become the most recent."""
        keys = list(keys)
        found = self._recall(keys)
        if self.store is not None and len(found) < len(keys):
            stored = self.store.find(key for key in keys if key not in found)
            self._insert(stored)
            found |= stored
        return found

    def add(self, margins: dict[bytes, float]) -> None:
        """Remember margins, forgetting the least recently used beyond the capacity."""
        self._insert(margins)
        if self.store is not None:
            self.store.add(margins)

    def refresh(self) -> None:
        """See what other engines have added to the store."""
        if self.store is not None:
            self.store.refresh()

    def save_soon(self) -> None:
        """Let others see what was added to the store."""
        if self.store is not None:
            self.store.save_soon()

    def _recall(self, keys: list[bytes]) -> dict[bytes, float]:
        if not self._margins:
            return {}
        found = {}
        with self._lock:
            for key in keys:
                if (margin := self._margins.get(key)) is not None:
                    self._margins.move_to_end(key)
                    found[key] = margin
        return found

    def _insert(self, margins: dict[bytes, float]) -> None:
        with self._lock:
            for key, margin in margins.items():
                self._margins[key] = margin
                self._margins.move_to_end(key)
            while len(self._margins) > self.capacity:
                self._margins.popitem(last=False)
