"""What Spark's Python workers (and the driver) use to reach the engine. Imports no torch.

`connect` finds or starts the one engine for (user, application, device). `EngineClient.rows` and `pairs` are generators
that keep a few batches on their way, so that the engine never waits for the caller, and that survive the engine's death.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from quail_spark.optimizer.errors import EngineCrashError, EngineError
from quail_spark.optimizer.plan import OperatorSpec

from .config import EngineConfig
from .connection import Connection, EngineGone, Stream
from .evaluator import Answers
from .launcher import EngineAddress, exit_status, find_or_start, with_log
from .processes import ProcessId, owner_process
from .runtime_dir import read_json
from .watch import Watch
from .wire import Codec, Message, PairBatch, TextBatch

WINDOW_BATCHES = 4  # unanswered batches of a stream, at most
WINDOW_BYTES = 32 << 20  # their size; a single batch may exceed it
RESTARTS = 2  # new engines for the same batch


def connect(config: EngineConfig, application: str, owner: ProcessId | None = None) -> "EngineClient":
    """The engine for `config.device` of this user and Spark application, started if need be; waits until it is ready.

    `application` is the Spark application id: two applications never share an engine. The engine lives as long as
    `owner`, by default the executor's Python daemon in a Spark worker, else this process. An engine with other
    settings on the same device is replaced if no stream uses it.

    Raises what made the engine's start fail (ModelError, ConfigError, …; EngineStartError where it could not say),
    with the end of its log; EngineError when the device's engine is at work with other settings.
    """
    address = EngineAddress(config, application, owner or owner_process())
    return EngineClient(address, find_or_start(address))


class EngineClient:
    """A client of one engine. Thread-safe; a stream (what `rows` or `pairs` returns) belongs to one thread at a time.

    When the engine has died or ended, the next use finds or starts another one.
    """

    def __init__(self, address: EngineAddress, connection: Connection):
        self.address = address
        self._connection = connection
        self._lock = threading.Lock()

    def rows(self, spec: OperatorSpec, batches: Iterable[TextBatch]) -> Iterator[Answers]:
        """One `Answers` per batch, in order, for the kinds `answers` and `filter`. Batches are lists of rows of texts,
        or record batches with string columns.

        `batches` is pulled by the thread that pulls the answers, a few batches ahead and never after `close`; what it
        raises passes through. Raises what the engine raises; EngineCrashError when engines keep dying on one batch.
        """
        _check_kind(spec, "answers", "filter")
        return self._answers(spec, batches)

    def pairs(self, spec: OperatorSpec, batches: Iterable[PairBatch]) -> Iterator[Answers]:
        """The same for the kind `pairs`; a batch is (anchors, anchor ids, the partners of each anchor).

        Blocks of partners that are the same object cross once per batch.
        """
        _check_kind(spec, "pairs")
        return self._answers(spec, batches)

    def stats(self) -> dict:
        """Totals of the engine (see stats.py); of one that has ended, the last that it wrote. Starts none."""
        connection = self._connection
        try:
            return connection.stats()
        except EngineGone as gone:
            written = read_json(connection.directory.stats(connection.state.run))
            if written is None:
                raise EngineError(f"the engine has ended ({gone}) and left no totals") from None
            return written

    def describe(self) -> dict:
        """Model, device, dtype, memory plan; of an engine that has ended, as it was after loading."""
        try:
            return self._connection.describe()
        except EngineGone:
            return self.stats()["describe"]

    def stop(self) -> None:
        """End the engine. A stream that is still open somewhere will start a new one."""
        with suppress(EngineGone):
            self._connection.stop(unless_used=False)

    def close(self) -> None:
        """Give up the connection; the engine stays."""
        self._connection.close()

    def _answers(self, spec: OperatorSpec, batches: Iterable) -> Iterator[Answers]:
        codec, source = Codec(spec), iter(batches)
        with _Window(self, spec) as window:
            exhausted = False
            while True:
                while not exhausted and window.has_room():
                    try:
                        batch = next(source)
                    except StopIteration:
                        exhausted = True
                    else:
                        window.send(codec.encode(batch))
                if window.is_empty():
                    return
                yield window.receive()

    def connection(self) -> Connection:
        """The present one."""
        return self._connection

    def another(self, gone: Connection) -> Connection:
        """A connection to an engine that is not the one of `gone`, or to the same if it is still well."""
        with self._lock:
            if self._connection is gone:
                self._connection = find_or_start(self.address)
            return self._connection


def _check_kind(spec: OperatorSpec, *kinds: str) -> None:
    if spec.kind not in kinds:
        raise EngineError(f"operator {spec.name!r} is of kind {spec.kind!r}; accepted here: {' or '.join(kinds)}")


class _Window:
    """The unanswered batches of one stream. Sends them again when the engine has died."""

    def __init__(self, client: EngineClient, spec: OperatorSpec):
        self._client, self._spec = client, spec
        self._connection = client.connection()
        self._stream: Stream | None = None
        self._broken = False  # the stream takes no more; answers may still be on their way
        self._unanswered: deque[Message] = deque()
        self._sent = 0  # how many of the unanswered this stream has sent
        self._answered = 0
        self._losses = 0  # of engines or streams, since the last answer
        self._watch = Watch(lambda: (self._connection, self._stream), spec.name, client.address.config.silence_timeout)

    def __enter__(self) -> "_Window":
        return self

    def __exit__(self, *_) -> None:
        self._watch.stop()
        if self._stream:
            self._stream.close()

    def has_room(self) -> bool:
        """Whether another batch may be sent."""
        size = sum(message.nbytes for message in self._unanswered)
        return not self._unanswered or (len(self._unanswered) < WINDOW_BATCHES and size < WINDOW_BYTES)

    def is_empty(self) -> bool:
        """Whether every batch is answered."""
        return not self._unanswered

    def send(self, message: Message) -> None:
        """Take the next batch. What goes wrong with it comes out of `receive`."""
        self._unanswered.append(message)
        self._send_unsent()

    def receive(self) -> Answers:
        """The answers to the oldest batch."""
        while True:
            self._send_unsent()
            try:
                answers = self._receive()
            except EngineGone as gone:
                self._start_over(gone)
                continue
            self._unanswered.popleft()
            self._sent -= 1
            self._answered += 1
            self._losses = 0
            return answers

    def _send_unsent(self) -> None:
        try:
            with self._watch:
                if self._stream is None:
                    self._stream = self._connection.open(self._spec)
                while not self._broken and self._sent < len(self._unanswered):
                    self._stream.send(self._unanswered[self._sent])
                    self._sent += 1
        except EngineGone:
            self._broken = True

    def _receive(self) -> Answers:
        if self._stream is None:
            raise EngineGone("no stream could be opened")
        try:
            with self._watch:
                return self._stream.receive()
        except EngineError as error:
            raise type(error)(with_log(str(error), self._log)) from None

    def _start_over(self, gone: EngineGone) -> None:
        if self._stream:
            self._stream.close()
        self._stream, self._broken, self._sent = None, False, 0
        self._losses += 1
        if self._losses > RESTARTS:
            raise EngineCrashError(with_log(self._crash(gone), self._log)) from None
        self._connection = self._client.another(self._connection)

    def _crash(self, gone: EngineGone) -> str:
        status = exit_status(self._connection.directory, self._connection.state.run)
        return (
            f"the engine on {self._client.address.config.device} was lost {self._losses} times in a row at the same "
            f"place of operator {self._spec.name!r}: batch {self._answered + 1} of this task, "
            f"{self._unanswered[0].items} rows; {self._watch.verdict or status}; {gone}"
        )

    @property
    def _log(self) -> Path:
        return self._connection.directory.log(self._connection.state.run)
