"""Finds the one engine of an application and a device on this machine, or starts it.

Who gets the lock of the engine's directory may start an engine, and hands the locked file to it: so there is never a
second one, however many processes race, and whoever of them is killed. The others wait for the state `ready`.

One device, one engine: an engine with other settings than those asked for (timeouts don't count) is asked to end when
no stream uses it, and a new one takes its place; while it is at work, the caller waits a little and then gets an
EngineError. A start that failed is reported to everybody who waits for it, and remembered for `FAILURE_MEMORY`
seconds, so that eight tasks do not each load a model that can't be loaded; after that it is tried again. An engine
that is killed while it loads says nothing of the model: another is started, `RESTARTS` times. One that hangs is killed,
while it loads after the start time and afterwards, by whoever looks for it, after the silence time.
"""

import logging
import os
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import quail_spark
from quail_spark.optimizer.errors import EngineError, EngineStartError

from .config import EngineConfig
from .connection import Connection, EngineGone
from .devices import address_of
from .processes import ProcessId, is_alive, kill
from .runtime_dir import (
    READY,
    STARTING,
    Failure,
    RuntimeDirectory,
    State,
    identity,
    log_tail,
    remove_abandoned,
)
from .wire import decode_error

HOST_MODULE = "quail_spark.engine.host"
FAILURE_MEMORY = 10.0  # seconds
RESTARTS = 2  # after deaths while loading that nothing explains
REPLACE_WAIT = 30.0  # seconds to wait for an engine with other settings to have no streams
_SLACK = 30.0  # seconds beyond the start timeout, which the engine itself watches over
_POLL = 0.05  # seconds
_MENTION = 30.0  # seconds of waiting between lines about it

# What Spark sets for its Python workers alone: secrets of their sockets, and one thread for numeric libraries.
_WORKER_ONLY = ("PYTHON_WORKER_", "PYSPARK_GATEWAY_", "SPARK_AUTH_SOCKET_", "SPARK_BUFFER_SIZE", "OMP_NUM_THREADS")
_log = logging.getLogger(__name__)
_children: dict[tuple[Path, int], subprocess.Popen] = {}  # (directory, run) → an engine this process started


@dataclass(frozen=True)
class EngineAddress:
    """Which engine: settings (with model and device resolved), Spark application id, the process it works for."""

    config: EngineConfig
    application: str
    owner: ProcessId

    @property
    def directory(self) -> RuntimeDirectory:
        """Where it lives."""
        return RuntimeDirectory.of(self.application, address_of(self.config.device))


def find_or_start(address: EngineAddress) -> Connection:
    """A connection to the ready engine at `address`.

    Raises the QuailError with which the engine failed to start; EngineStartError when it dies while starting, does
    not come up in time, or its directory isn't private; EngineError when an engine with other settings is at work.
    """
    return _Search(address).run()


class _Search:
    """One client's way to a ready engine."""

    def __init__(self, address: EngineAddress):
        self._address, self._directory = address, address.directory
        self._deadline = time.monotonic() + address.config.start_timeout + _SLACK
        self._replace_deadline = time.monotonic() + REPLACE_WAIT
        self._mention_at = time.monotonic() + _MENTION
        self._watched = 0  # number of the run that was seen starting
        self._watched_since = time.monotonic()
        self._silent = (0, 0.0)  # run of a ready engine that does not answer, and since when

    def run(self) -> Connection:
        while True:
            try:
                self._start_if_free()
            except OSError as error:
                raise EngineStartError(
                    f"can't write to the engine's directory {self._directory.path} on {socket.gethostname()}: "
                    f"{error.strerror}; make room there, or set TMPDIR to another directory for Spark's processes"
                ) from error
            state = self._directory.state()
            connection = self._use(state) if state else None
            if connection:
                return connection
            if time.monotonic() > self._deadline:
                raise self._late(state)
            self._mention(state)
            time.sleep(_POLL)

    def _start_if_free(self) -> None:
        self._directory.prepare()
        lock = self._directory.try_lock()
        if lock is not None:
            try:
                self._start(lock)
            finally:
                os.close(lock)  # never unlocked: the engine has it

    def _mention(self, state: State | None) -> None:
        """A task that waits is not silent about it."""
        if time.monotonic() > self._mention_at:
            self._mention_at += _MENTION
            log = self._directory.log(state.run) if state else "none yet"
            _log.warning("waiting for the engine on %s; its log: %s", self._address.config.device, log)

    def _start(self, lock: int) -> None:
        last = self._directory.state()
        deaths = self._deaths(last) if last and last.state == STARTING and last.run == self._watched else 0
        self._raise_recent_failure()
        remove_abandoned(keep=self._directory)
        run = self._directory.next_run()
        others = [owner for owner in (last.owners if last else ()) if is_alive(owner)]
        owners = tuple(dict.fromkeys([*others, self._address.owner]))
        for stale in self._directory.path.glob("*.sock"):
            stale.unlink(missing_ok=True)
        self._directory.write_state(
            State(STARTING, run, self._address.application, self._address.config, owners, deaths=deaths)
        )
        self._watch(run)
        spawn(self._directory, run, lock)

    def _watch(self, run: int) -> None:
        if run != self._watched:
            self._watched, self._watched_since = run, time.monotonic()

    def _deaths(self, state: State) -> int:
        """How many engines in a row have died while starting and could not say why, up to this one. One that was killed
        may load next time; one that ended by itself, or that was the last of several, is a start that failed."""
        failure = self._directory.failure()
        if failure is not None and failure.run == state.run:
            return 0
        deaths, code = state.deaths + 1, _exit_code(self._directory, state.run)
        if deaths <= RESTARTS and (code is None or code < 0):
            return deaths
        times = f"; {deaths} in a row" if deaths > 1 else ""
        message = f"the engine process died while it was starting ({exit_status(self._directory, state.run)}{times})"
        self._directory.write_failure(Failure(state.run, identity(state.config), "EngineStartError", message))
        return 0

    def _raise_recent_failure(self) -> None:
        failure = self._directory.failure()
        if failure is None or failure.identity != identity(self._address.config):
            return
        if failure.run == self._watched or 0 <= time.time() - failure.time < FAILURE_MEMORY:
            raise decode_error(
                {"kind": failure.kind, "message": with_log(failure.message, self._directory.log(failure.run))}
            )

    def _use(self, state: State) -> Connection | None:
        """A connection, if the present engine is ready and has the right settings."""
        if state.state == STARTING:
            self._watch(state.run)
        if state.state != READY:
            return None
        connection, began = Connection(self._directory, state), time.monotonic()
        try:
            if identity(state.config) == identity(self._address.config):
                connection.register(self._address.owner, self._address.config.idle_timeout)
                return connection
            self._replace(connection)
            self._silent = (0, 0.0)
        except EngineGone as gone:
            if "ending" not in str(gone):
                self._end_if_silent(state, began)
        connection.close()
        return None

    def _end_if_silent(self, state: State, asked: float) -> None:
        """The engine did not answer what it was `asked` then. A hung one is killed after the silence time."""
        if state.process is None or not is_alive(state.process):
            return
        if self._silent[0] != state.run:
            self._silent = (state.run, asked)
        config, since = self._address.config, self._silent[1]
        if time.monotonic() - since >= config.silence_timeout:
            kill(state.process)
            _log.error(
                "engine process %d answered nothing for %g s and was killed", state.process.pid, config.silence_timeout
            )
            since = time.monotonic() - config.silence_timeout
        self._deadline = max(self._deadline, since + config.silence_timeout + config.start_timeout + _SLACK)

    def _replace(self, connection: Connection) -> None:
        streams = connection.stop(unless_used=True)
        if streams and time.monotonic() > self._replace_deadline:
            raise EngineError(
                f"the engine of {self._address.config.device} serves {connection.state.config.to_json()} and is at work "
                f"({streams} open streams); asked for: {self._address.config.to_json()}. There is one engine to a "
                "device: let the other query end first, or use the same settings"
            )

    def _late(self, state: State | None) -> EngineStartError:
        """What to raise when it has taken too long. An engine that should itself have given up loading is killed."""
        run = state.run if state else 0
        limit = self._address.config.start_timeout
        watched = time.monotonic() - self._watched_since
        hung = state and state.process and state.state == STARTING and watched > state.config.start_timeout
        if hung and kill(state.process):
            message = (
                f"engine process {state.process.pid} hung while it was loading, for {watched:.0f} s, and was killed"
            )
            return EngineStartError(with_log(message, self._directory.log(run)))
        what = f"engine process {state.process.pid} does not answer" if state and state.process else "no engine came up"
        return EngineStartError(with_log(f"{what} within {limit + _SLACK:g} s", self._directory.log(run)))


def spawn(directory: RuntimeDirectory, run: int, lock: int) -> None:
    """Start the engine process; it inherits the locked file and nothing else."""
    log = os.open(directory.log(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", HOST_MODULE, str(directory.path), str(run), str(lock)],
            cwd=directory.path,
            env=engine_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock,),
        )
    except OSError as error:
        raise EngineStartError(f"can't run {sys.executable}: {error.strerror}") from error
    finally:
        os.close(log)
    for earlier in _children.values():
        earlier.poll()  # no zombies
    _children[directory.path, run] = child


def exit_status(directory: RuntimeDirectory, run: int) -> str:
    """In words: how an engine process ended. Known to the process that started it."""
    code = _exit_code(directory, run)
    if code is None:
        return "it still runs" if (directory.path, run) in _children else "exit status unknown"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def _exit_code(directory: RuntimeDirectory, run: int) -> int | None:
    """Below 0: the signal. None: unknown, or it still runs."""
    child = _children.get((directory.path, run))
    with suppress(subprocess.TimeoutExpired):
        return child and child.wait(1)
    return None


def with_log(message: str, log: Path) -> str:
    """`message`, where the engine's log is, and its last lines."""
    tail = log_tail(log)
    return f"{message}\nEngine log: {log} on {socket.gethostname()}" + (
        f", last lines:\n{tail}" if tail else " (empty)"
    )


def engine_environment() -> dict[str, str]:
    """This process's environment for the engine: without what is meant for Spark's workers, able to import this package.

    The folder of a checkout is left out of PYTHONPATH: it holds a `kernels` that is not the package of that name.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_WORKER_ONLY)}
    package = Path(quail_spark.__file__).resolve().parent
    checkout = Path(__file__).resolve().parent.parent != package
    given = [Path(path).absolute() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths = [path for path in given if not checkout or path.resolve() != package.parent]
    site = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if not checkout and package.parent not in site:
        paths.append(package.parent)
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's numbers, and so discovery scripts'
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads would take the cores from Spark's
    # Each stream has threads of its own, and glibc gives new threads an arena each, up to eight a core: what one stream has
    # freed there the next does not use, and the process grows for hours.
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(map(str, paths)))
    return environment
