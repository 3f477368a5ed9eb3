"""A client that waits for its engine is not silent about it, and does not wait for ever for one that is hung. Torch-free.

An engine answers calls for its totals at once, whatever its model does. One that does not is mentioned in the log, and
killed after the silence time: its streams break, and their clients find or start another one.
"""

import logging
import threading
import time
from collections.abc import Callable

from . import connection as connections
from .connection import Connection, EngineGone, Stream
from .processes import is_alive, kill

MENTION = 300.0  # seconds of waiting after which an engine that does not answer a call is mentioned
LOOKS = 5  # at an engine within that time, or within its silence time where that is shorter

_log = logging.getLogger(__name__)


class Watch:
    """Looks at the engine from time to time while its owner waits (`with watch:`). `verdict`: why an engine was killed."""

    def __init__(self, present: Callable[[], tuple[Connection, Stream | None]], operator: str, silence: float):
        """`present` gives the owner's connection and stream; `silence` in seconds."""
        self._present, self._operator, self._silence = present, operator, silence
        self._every = min(MENTION, silence) / LOOKS
        self._since: float | None = None  # the owner waits
        self._silent_since: float | None = None  # the engine answers nothing
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.verdict = ""

    def __enter__(self) -> None:
        self._since = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="quail-watch", daemon=True)
            self._thread.start()

    def __exit__(self, *_) -> None:
        self._since = None

    def stop(self) -> None:
        """No more."""
        self._stopped.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._every):
            since = self._since
            if since is None:
                self._silent_since = None
            elif time.monotonic() - since >= self._every:
                self._look(since)

    def _look(self, since: float) -> None:
        connection, stream = self._present()
        began = time.monotonic()
        try:
            connection.stats(self._patience)
        except EngineGone as gone:
            self._silent_since = self._silent_since or began
            if time.monotonic() - since >= min(MENTION, self._silence):
                self._mention(connection, since, gone)
            if time.monotonic() - self._silent_since >= self._silence and self._since == since:
                self._end(connection, stream)
        else:
            self._silent_since = None

    def _mention(self, connection: Connection, since: float, gone: EngineGone) -> None:
        _log.warning(
            "operator %r has waited for %.0f s, and engine process %s does not answer: %s. Its log: %s",
            self._operator,
            time.monotonic() - since,
            connection.state.process.pid,
            gone,
            connection.directory.log(connection.state.run),
        )

    def _end(self, connection: Connection, stream: Stream | None) -> None:
        """Kill the engine, unless it answers on a new connection, and wake the owner."""
        process, self._silent_since = connection.state.process, None
        if not self._answers_anew(connection) and is_alive(process):
            self.verdict = f"engine process {process.pid} answered nothing for {self._silence:g} s and was killed"
            _log.error("operator %r: %s", self._operator, self.verdict)
            kill(process)
        if stream:
            stream.cancel()

    def _answers_anew(self, connection: Connection) -> bool:
        fresh = Connection(connection.directory, connection.state)
        try:
            fresh.stats(self._patience)
            return True
        except EngineGone:
            return False
        finally:
            fresh.close()

    @property
    def _patience(self) -> float:
        """Seconds for one call."""
        return min(connections.ACTION_TIMEOUT, self._silence)
