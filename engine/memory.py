"""The memory of answers: equal prompts are computed once per engine process, whatever call or session they come in."""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock


class AnswerMemory:
    """Least-recently-used map from a prompt's key (16 bytes) to its margin. Thread-safe.

    Holds successes only, so a failure is tried again. `capacity` 0 remembers nothing.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._margins: OrderedDict[bytes, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._margins)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, float]:
        """The margins of those keys that are remembered; they become the most recent."""
        if not self._margins:
            return {}
        found = {}
        with self._lock:
            for key in keys:
                if (margin := self._margins.get(key)) is not None:
                    self._margins.move_to_end(key)
                    found[key] = margin
        return found

    def add(self, margins: dict[bytes, float]) -> None:
        """Remember margins, forgetting the least recently used beyond the capacity."""
        with self._lock:
            for key, margin in margins.items():
                self._margins[key] = margin
                self._margins.move_to_end(key)
            while len(self._margins) > self.capacity:
                self._margins.popitem(last=False)
