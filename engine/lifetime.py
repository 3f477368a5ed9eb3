"""When an engine process ends. Knows processes, streams and clocks; nothing of models or sockets."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

from .processes import ProcessId, is_alive

POLL = 1.0  # seconds between looks at the owners
OWNERLESS = 2.5  # seconds without an owner: time for a new Python daemon to take the place of one that died
LEAST_IDLE = 2.0  # seconds that any idle time lasts: time for a new client to open its stream


class End(Enum):
    """Why an engine ends; the value is what its log says."""

    STOPPED = "it was asked to"
    SIGNAL = "it got SIGTERM"
    IDLE = "no stream used it for the idle time"
    NO_OWNER = "no process of its application is left"
    NOT_READY = "its model did not load within the start time"
    REMOVED = "its directory was removed"


class Ending(Exception):
    """A stream was asked of an engine that is about to end."""


class Lifetime:
    """Thread-safe. Owners are processes; while none of them lives, the engine has no one to work for."""

    def __init__(
        self,
        owners: Iterable[ProcessId],
        idle_timeout: float,
        start_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        alive: Callable[[ProcessId], bool] = is_alive,
    ):
        """Times in seconds."""
        self._owners, self._idle_timeout, self._start_timeout = set(owners), idle_timeout, start_timeout
        self._clock, self._alive = clock, alive
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._end: End | None = None
        self._streams = 0
        self._ready = False
        self._started = self._owned = self._used = clock()

    @property
    def owners(self) -> tuple[ProcessId, ...]:
        """Those known to have lived at the last look."""
        with self._lock:
            return tuple(sorted(self._owners))

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams

    def ready(self) -> None:
        """The model is loaded: idle time counts from now."""
        with self._lock:
            self._ready, self._used = True, self._clock()

    def register(self, owner: ProcessId, idle_timeout: float) -> None:
        """A client of `owner` is about to use the engine; the newest idle time (seconds) holds. Raises Ending."""
        with self._lock:
            self._raise_if_ending()
            self._owners.add(owner)
            self._idle_timeout, self._used = idle_timeout, self._clock()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Around one stream. Raises Ending."""
        with self._lock:
            self._raise_if_ending()
            self._streams += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams -= 1
                self._used = self._clock()

    def end(self, why: End) -> None:
        """End soon. The first reason counts."""
        with self._lock:
            self._end = self._end or why
        self._asked.set()

    def end_unless_used(self, why: End) -> int:
        """End soon if no stream is open. Returns the number of open streams."""
        with self._lock:
            if self._streams:
                return self._streams
            self._end = self._end or why
        self._asked.set()
        return 0

    def wait(self, each_poll: Callable[[], None]) -> End:
        """Block until it is time to end; look at owners and clocks, and call `each_poll`, about once a second."""
        while True:
            self.look()
            if self._end:
                return self._end
            each_poll()
            self._asked.wait(POLL)

    def look(self) -> None:
        """One look at owners and clocks."""
        dead = {owner for owner in self.owners if not self._alive(owner)}
        with self._lock:
            now = self._clock()
            self._owners -= dead
            if self._owners:
                self._owned = now
            if self._end is None:
                self._end = self._due(now)

    def _due(self, now: float) -> End | None:
        if now - self._owned >= OWNERLESS:
            return End.NO_OWNER
        if not self._ready:
            return End.NOT_READY if now - self._started >= self._start_timeout else None
        return End.IDLE if not self._streams and now - self._used >= max(self._idle_timeout, LEAST_IDLE) else None

    def _raise_if_ending(self) -> None:
        if self._end:
            raise Ending
