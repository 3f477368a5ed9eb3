"""The answers of one model that outlive the engine: found again by later queries, later engines and other applications.

Answers wait in memory for at most `FLUSH_SECONDS`, `FLUSH_ANSWERS` of them or the end of a stream, and are then written by
a thread of the store's own. So an engine that is killed loses the answers of one such interval, and whoever starts again
computes those and what had not been answered.
"""

import logging
import threading
import time
from collections.abc import Iterable
from itertools import islice

from .answer_files import AnswerFiles, Run

FLUSH_SECONDS = 5.0
FLUSH_ANSWERS = 100_000  # in one file
MOST_PENDING = 1_000_000  # answers that wait while nothing can be written; further ones are not stored
MOST_ANSWERS = 20_000_000  # in memory, 20 bytes each; older ones are computed again
MERGE_FILES = 32  # that are small
SMALL_ANSWERS = 50_000
MERGE_ANSWERS = 1_000_000  # in one merge, about
LEAST_REFRESH = 1.0  # seconds between looks at the directory
_READ_AT_ONCE = 8  # files
_log = logging.getLogger(__name__)


def open_store(location: str, identity: str) -> "AnswerStore | None":
    """The store at `location`; None where that is empty."""
    return AnswerStore(location, identity) if location else None


class AnswerStore:
    """An append-only map from a prompt's key (16 bytes) to its margin. Thread-safe.

    Made for one `identity`: whatever answers depend on besides the prompt. Nothing is read before `refresh`. After
    construction no method raises: what can't be read is computed, and what can't be written is tried again, counted,
    and logged once.
    """

    def __init__(self, location: str, identity: str):
        """Raises what the file system of `location` raises; see `answer_files.check_location`."""
        self.location, self._files = location, AnswerFiles(location, identity)
        self._pending: dict[bytes, float] = {}
        self._runs: tuple[Run, ...] = ()
        self._known: set[str] = set()
        self._small: dict[str, int] = {}  # files worth merging, with their numbers of answers
        self._written = self._failures = self._dropped = 0
        self._failure: str | None = None
        self._read_at = float("-inf")
        self._full = False
        self._lock = threading.Lock()  # of what is in memory; never held while reading, writing or sorting
        self._reading, self._writing, self._sorting = threading.Lock(), threading.Lock(), threading.Lock()
        self._asked, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="answer store", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return sum(map(len, self._runs)) + len(self._pending)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, float]:
        """The margins of those keys that are stored, as far as they have been read."""
        keys = list(keys)
        with self._lock:
            found = {key: margin for key in keys if (margin := self._pending.get(key)) is not None}
            runs = self._runs
        for run in runs:
            if missing := [key for key in keys if key not in found]:
                found |= run.find(missing)
        return found

    def add(self, margins: dict[bytes, float]) -> None:
        """Store finite margins, soon."""
        with self._lock:
            room = MOST_PENDING - len(self._pending)
            self._dropped += max(0, len(margins) - room)
            self._pending.update(islice(margins.items(), max(0, room)))
            full = len(self._pending) >= FLUSH_ANSWERS
        if full:
            self._asked.set()

    def refresh(self) -> None:
        """Read what other engines have written since the last time, newest first while there is room."""
        with self._reading:
            if time.monotonic() - self._read_at < LEAST_REFRESH:
                return
            try:
                for _ in range(3):  # files that were merged while they were to be read are in a newer one
                    if self._read_new():
                        break
            except Exception as error:  # whatever it is, no job ends for it
                self._failed("read", error)
            self._read_at = time.monotonic()

    def save_soon(self) -> None:
        """Write what waits, without waiting for it."""
        self._asked.set()

    def close(self) -> None:
        """Write what waits, and end the thread. May be called again."""
        self._closing = True
        self._asked.set()
        self._thread.join()
        self._flush()

    def facts(self) -> dict:
        """Answers in memory, written and not yet written by this engine; failed reads and writes; JSON-serialisable."""
        with self._lock:
            return {
                "location": self.location,
                "answers": len(self),
                "written": self._written,
                "waiting": len(self._pending),
                "dropped": self._dropped,
                "failures": self._failures,
                "failure": self._failure,
            }

    def _work(self) -> None:
        while not self._closing:
            self._asked.wait(FLUSH_SECONDS)
            self._asked.clear()
            if not self._flush():
                time.sleep(min(FLUSH_SECONDS, 1.0))  # before the next attempt, whoever asks
            elif len(self._small) >= MERGE_FILES and not self._closing:
                self._merge()

    def _flush(self) -> bool:
        """Write all that waits; whether that worked."""
        with self._writing:
            while self._pending:
                with self._lock:
                    batch = dict(islice(self._pending.items(), FLUSH_ANSWERS))
                run = Run.of_dict(batch)
                try:
                    name = self._files.write(run)
                except Exception as error:
                    self._failed("written", error)
                    return False
                self._take(name, run)
                with self._lock:
                    for key in batch:
                        del self._pending[key]
                    self._written += len(batch)
        return True

    def _merge(self) -> None:
        """Make one file of many small ones."""
        with self._lock:
            names, total = [], 0
            for name, answers in sorted(self._small.items()):
                if total + answers <= MERGE_ANSWERS:
                    names.append(name)
                    total += answers
            for name in names:
                del self._small[name]
        try:
            runs = dict(zip(names, self._files.read(names), strict=True))
            here = [name for name, run in runs.items() if run is not None]
            if len(here) > 1:
                run = Run.merged([runs[name] for name in here])
                name = self._files.write(run)
                self._note(name, run)
                self._files.delete(here)
        except Exception as error:
            self._failed("merged", error)

    def _read_new(self) -> bool:
        """Read new files; whether all of them were still there."""
        complete = True
        new = [name for name in self._files.names() if name not in self._known]
        for start in range(0, len(new), _READ_AT_ONCE):
            if self._is_full():
                break
            names = new[start : start + _READ_AT_ONCE]
            for name, run in zip(names, self._files.read(names), strict=True):
                if run is not None:
                    self._take(name, run)
                else:
                    complete &= name in self._files.unreadable
                    self._known.add(name)
        return complete

    def _take(self, name: str, run: Run) -> None:
        """Answers that stand in a file can be found. Merges runs so that there are few, each larger than the next."""
        if not self._is_full():
            with self._sorting:
                runs = [*self._runs, run]
                while len(runs) > 1 and len(runs[-2]) <= 2 * len(runs[-1]):
                    runs[-2:] = [Run.merged(runs[-2:])]
                self._runs = tuple(runs)
        self._note(name, run)

    def _note(self, name: str, run: Run) -> None:
        with self._lock:
            self._known.add(name)
            if len(run) < SMALL_ANSWERS:
                self._small[name] = len(run)

    def _is_full(self) -> bool:
        if len(self) < MOST_ANSWERS:
            return False
        if not self._full:
            self._full = True
            _log.warning("%d stored answers are in memory; further ones of %s are left out", len(self), self.location)
        return True

    def _failed(self, what: str, error: Exception) -> None:
        if self._failure is None:
            _log.warning("answers can't be %s in the store %s: %s; the job goes on", what, self.location, error)
        self._failures += 1
        self._failure = f"answers could not be {what}: {error}"
