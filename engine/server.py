"""The Arrow Flight server of the engine process: streams of batches (`do_exchange`), and a few actions.

Actions take and give JSON: `register` (owner, idle_timeout), `stop` (unless_used), `stats`, `describe`. An error comes
back as `{"error": {"kind", "message"}}`.
"""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from pyarrow import flight

from quail_spark.optimizer.errors import EngineError
from quail_spark.optimizer.plan import OperatorSpec

from .evaluator import Answers, Evaluator, Session
from .lifetime import End, Ending, Lifetime
from .processes import ProcessId
from .stats import Stats
from .wire import ANSWERS, TRANSPORT_ERRORS, Codec, decode_request, encode_error, encode_json

SLOW = 600.0  # seconds after which a batch in progress is mentioned in the log, again and again


class EngineServer(flight.FlightServerBase):
    """Serves one evaluator. Listens from its construction on."""

    def __init__(self, location: str, evaluator: Evaluator, lifetime: Lifetime, stats: Stats):
        """`location` is `grpc+unix://` and a path."""
        super().__init__(location)
        self._evaluator, self._lifetime, self._stats = evaluator, lifetime, stats
        self._in_progress: dict[int, list] = {}  # thread → [operator, items, since, next mention]

    def do_exchange(self, context, descriptor, reader, writer) -> None:
        """One stream: a session answers the client's batches in order."""
        inbox = _Inbox(reader)
        try:
            with self._lifetime.stream():
                self._serve(descriptor.command, inbox, writer)
        except Ending:
            _send(writer, {"ending": True})
        finally:
            inbox.join()

    def do_action(self, context, action) -> Iterator[bytes]:
        """See the module's text."""
        actions = {
            "register": self._register,
            "stop": self._stop,
            "stats": self._read_stats,
            "describe": self._describe,
        }
        try:
            if action.type not in actions:
                raise EngineError(f"the engine has no action {action.type!r}; accepted: {', '.join(actions)}")
            result = actions[action.type](**json.loads(action.body.to_pybytes() or b"{}"))
        except Ending:
            raise flight.FlightUnavailableError("the engine is ending") from None
        except Exception as error:
            result = {"error": encode_error(error)}
        return iter([encode_json(result)])

    def log_slow_batches(self, log: Callable[[str], None]) -> None:
        """Mention batches that have been in progress for long: a hung model must not be silent."""
        now = time.monotonic()
        for entry in list(self._in_progress.values()):
            operator, items, since, mention = entry
            if now >= mention:
                entry[3] = now + SLOW
                log(f"operator {operator!r}: a batch of {items} items has been in progress for {now - since:.0f} s")

    def _serve(self, request: bytes, inbox: "_Inbox", writer) -> None:
        session = None
        try:
            spec = decode_request(request)
            session = self._evaluator.open(spec)
            inbox.on_end = session.cancel
            self._answer_all(spec, session, inbox, writer)
        except _ClientGone:
            pass
        except Exception as error:
            if not inbox.ended:
                self._report(error)
                _send(writer, {"error": encode_error(error)})
        finally:
            if session:
                session.close()

    def _answer_all(self, spec: OperatorSpec, session: Session, inbox: "_Inbox", writer) -> None:
        codec = Codec(spec)
        with _client_may_go():
            writer.begin(ANSWERS)
        for chunk in inbox:
            answers = self._answer(spec, codec, session, chunk)
            self._stats.add(spec, answers)
            if inbox.is_empty():  # maybe the last: whoever has it may read the totals at once
                self._stats.write()
            data, metadata = codec.encode_answers(answers)
            with _client_may_go():
                writer.write_with_metadata(data, metadata)

    def _answer(self, spec: OperatorSpec, codec: Codec, session: Session, chunk) -> Answers:
        metadata = chunk.app_metadata.to_pybytes()
        now = time.monotonic()
        self._in_progress[threading.get_ident()] = [spec.name, json.loads(metadata)["items"], now, now + SLOW]
        try:
            with self._stats.busy():
                return codec.answer(session, chunk.data, metadata)
        finally:
            del self._in_progress[threading.get_ident()]

    def _register(self, owner: list, idle_timeout: float) -> dict:
        self._lifetime.register(ProcessId(*owner), idle_timeout)
        return {"pid": os.getpid()}

    def _stop(self, unless_used: bool) -> dict:
        if unless_used:
            return {"streams": self._lifetime.end_unless_used(End.STOPPED)}
        self._lifetime.end(End.STOPPED)
        return {"streams": 0}

    def _read_stats(self) -> dict:
        return {**self._stats.snapshot(), "streams": self._lifetime.streams}

    def _describe(self) -> dict:
        return self._evaluator.describe()

    def _report(self, error: Exception) -> None:
        kind = encode_error(error)["kind"]
        if kind != type(error).__name__:
            traceback.print_exception(error)
            sys.stderr.flush()
        if any(base.__name__ == "AcceleratorError" for base in type(error).__mro__):
            print("ending: after this error the device can't be used by this process any more", flush=True)
            os._exit(70)


def _send(writer, message: dict) -> None:
    """A message without a batch; to a client that may be gone."""
    with suppress(*TRANSPORT_ERRORS):
        writer.write_metadata(encode_json(message))


class _ClientGone(Exception):
    """The client closed its stream, or died."""


@contextmanager
def _client_may_go() -> Iterator[None]:
    try:
        yield
    except TRANSPORT_ERRORS as error:
        raise _ClientGone from error


class _Inbox:
    """Reads a stream's messages ahead, so that a client is never blocked in writing, the next batch is here when the
    present one is answered, and the client's end is seen while a batch is in progress.

    A client ends its stream only after the last answer, or when it wants no more; so what is unread then is void.
    The client bounds how many batches are on their way.
    """

    def __init__(self, reader):
        self.on_end: Callable[[], None] | None = None
        self._reader, self._messages, self.ended = reader, SimpleQueue(), False
        self._thread = threading.Thread(target=self._read, name="inbox", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator:
        while (message := self._messages.get()) is not None:
            if self.ended:
                raise _ClientGone
            yield message

    def is_empty(self) -> bool:
        """Whether no message is waiting."""
        return self._messages.empty()

    def join(self) -> None:
        """Wait for the client's end of the stream: the reader must not outlive the call it belongs to."""
        self._thread.join()

    def _read(self) -> None:
        try:
            with suppress(StopIteration, *TRANSPORT_ERRORS):
                while True:
                    self._messages.put(self._reader.read_chunk())
        finally:
            self.ended = True
            self._messages.put(None)
            if self.on_end:
                self.on_end()
