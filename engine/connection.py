"""A connection to one engine process, and its streams. Knows nothing of other engines or of starting over."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyarrow import flight

from quail_spark.optimizer.plan import OperatorSpec

from .evaluator import Answers
from .processes import ProcessId
from .runtime_dir import RuntimeDirectory, State
from .wire import TRANSPORT_ERRORS, Codec, Message, decode_error, encode_request

ACTION_TIMEOUT = 20.0  # seconds; actions are answered at once, also while the model works


class EngineGone(Exception):
    """The engine ended or died, or the connection to it broke."""


@contextmanager
def _transport() -> Iterator[None]:
    """Whatever goes wrong in here is the connection's fault: the engine's own errors come as messages."""
    try:
        yield
    except TRANSPORT_ERRORS as error:
        raise EngineGone(str(error)) from error


class Connection:
    """Thread-safe. Every method raises EngineGone, or the QuailError that the engine sent."""

    def __init__(self, directory: RuntimeDirectory, state: State):
        self.directory, self.state = directory, state
        self._client = flight.FlightClient(directory.location(state.run))

    def register(self, owner: ProcessId, idle_timeout: float) -> None:
        """Tell the engine for which process it works; checks that it answers."""
        self._act("register", owner=owner, idle_timeout=idle_timeout)

    def stop(self, unless_used: bool) -> int:
        """Ask the engine to end. Returns the number of open streams that made it refuse (0: it ends)."""
        return self._act("stop", unless_used=unless_used)["streams"]

    def stats(self, timeout: float | None = None) -> dict:
        """See stats.py. `timeout` in seconds, where the usual one is too long."""
        return self._act("stats", timeout)

    def describe(self) -> dict:
        """See `Evaluator.describe`."""
        return self._act("describe")

    def open(self, spec: OperatorSpec) -> "Stream":
        """Start a stream of batches."""
        return Stream(self._client, spec)

    def close(self) -> None:
        """Give up the connection."""
        with suppress(*TRANSPORT_ERRORS):
            self._client.close()

    def _act(self, name: str, timeout: float | None = None, **arguments) -> dict:
        options = flight.FlightCallOptions(timeout=timeout or ACTION_TIMEOUT)
        with _transport():
            (result,) = self._client.do_action(flight.Action(name, json.dumps(arguments).encode()), options)
        answer = json.loads(result.body.to_pybytes())
        if "error" in answer:
            raise decode_error(answer["error"])
        return answer


class Stream:
    """Batches of one operator, answered in order. Not thread-safe."""

    def __init__(self, client: flight.FlightClient, spec: OperatorSpec):
        self._codec = Codec(spec)
        with _transport():
            descriptor = flight.FlightDescriptor.for_command(encode_request(spec))
            self._writer, self._reader = client.do_exchange(descriptor)
            self._writer.begin(self._codec.schema)

    def send(self, message: Message) -> None:
        """Returns when the engine's end has taken it, which does not wait for the model."""
        with _transport():
            self._writer.write_with_metadata(message.data, message.metadata)

    def receive(self) -> Answers:
        """The answers to the oldest unanswered message; waits for the model."""
        with _transport():
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                raise EngineGone("the stream ended early") from None
        metadata = chunk.app_metadata.to_pybytes()
        if chunk.data is None and "ending" in json.loads(metadata):
            raise EngineGone("the engine is ending")
        return self._codec.decode_answers(chunk.data, metadata)

    def close(self) -> None:
        """End it, whatever is on its way; the engine closes the session. Does not wait."""
        self.cancel()
        with suppress(*TRANSPORT_ERRORS):
            self._writer.close()

    def cancel(self) -> None:
        """Whoever waits in `send` or `receive` gets EngineGone. From any thread."""
        with suppress(*TRANSPORT_ERRORS):
            self._reader.cancel()
