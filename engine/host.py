"""The engine process: `python -P -m quail_spark.engine.host <directory> <run> <lock>`, started by launcher.py only.

It inherits the locked lock file as descriptor `lock` and keeps it until it ends. The main thread loads the model, then
waits for signals. A second thread looks at owners and clocks, writes the totals and ends the process. Arrow Flight
runs one thread per stream; each has a session of its own, and a thread that reads ahead.
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from quail_spark.optimizer.errors import EngineStartError

from .cache import cache_dir
from .config import EngineConfig
from .devices import address_of
from .evaluator import Evaluator
from .interpreter import favour_launches
from .lifetime import End, Lifetime
from .processes import own_process
from .runtime_dir import ENDED, READY, Failure, RuntimeDirectory, State, identity
from .server import EngineServer
from .stats import Stats
from .wire import encode_error

_TOUCH = 3600.0  # seconds between touches of the directory's files
_FAREWELL = 2.0  # seconds for calls in progress to end
_SAVE = 10.0  # seconds for answers to reach the store


def log(text: str) -> None:
    """One line of the engine's log (its standard output)."""
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


class _Unfailing:
    """A stream into the log. What finds no room on the disk is lost, and no error of whoever had something to say."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        """As a file's."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As a file's."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str):
        return getattr(self._stream, name)


class Host:
    """One engine process and its files."""

    def __init__(self, directory: RuntimeDirectory, run: int, lock: int):
        self._directory, self._lock = directory, lock
        state = directory.state()
        if state is None or state.run != run or not directory.is_lock(lock):
            raise EngineStartError(
                f"{directory.path} is not prepared for engine {run}; engines are started by connect()"
            )
        self._started = time.time()
        self._touched = time.monotonic()
        self._state = state.with_(process=own_process())
        self._state_lock = threading.Lock()
        self._config = state.config
        self._lifetime = Lifetime(state.owners, state.config.idle_timeout, state.config.start_timeout)
        self._stats = Stats(directory.stats(run), self._facts(state))
        self._server: EngineServer | None = None
        self._evaluator: Evaluator | None = None

    def start(self, make_evaluator: Callable[[EngineConfig], Evaluator]) -> None:
        """Load the model and listen. A failure is recorded for the clients and raised."""
        self._directory.write_state(self._state)
        threading.Thread(target=self._live, name="lifetime", daemon=True).start()
        log(f"engine {self._state.run}, process {os.getpid()}: loading {self._config.model} on {self._config.device}")
        try:
            self._evaluator = make_evaluator(self._config)
            favour_launches()
            described = self._evaluator.describe()
            location = self._directory.location(self._state.run)
            self._server = EngineServer(location, self._evaluator, self._lifetime, self._stats)
        except Exception as error:
            with suppress(OSError):
                self._record_failure(error)
            raise
        seconds = time.time() - self._started
        self._update_stats(state=READY, load_seconds=seconds, describe=described)
        self._stats.write()
        self._lifetime.ready()
        self._heed_sigterm()
        self._change_state(state=READY)
        log(f"ready after {seconds:.1f} s")

    def wait_for_signals(self) -> None:
        """Never returns: the lifetime thread ends the process."""
        while True:
            self._signals.recv(1)  # afterwards Python runs the signal's handler

    def _heed_sigterm(self) -> None:
        """From now on SIGTERM ends the engine in order; while it loads, at once.

        A signal that arrives just before the main thread waits, or in another thread, interrupts no wait; the byte that
        it leaves in a socket does.
        """
        self._signals, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signal.set_wakeup_fd(wakeup.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._lifetime.end(End.SIGNAL))

    def _live(self) -> None:
        status = 1
        try:
            end = self._lifetime.wait(self._each_second)
            log(f"ending: {end.value}")
            self._farewell(end)
            status = int(end is End.NOT_READY)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _each_second(self) -> None:
        if not self._directory.is_lock(self._lock):
            self._lifetime.end_unless_used(End.REMOVED)
            return
        with suppress(OSError):  # a full disk, say, is no reason to end a job
            self._update_files()
        if self._state.state == READY:
            self._server.log_slow_batches(log)

    def _update_files(self) -> None:
        if self._lifetime.owners != self._state.owners:
            self._change_state(owners=self._lifetime.owners)
        if time.monotonic() - self._touched > _TOUCH:
            self._touched = time.monotonic()
            self._directory.touch()
        if self._state.state == READY:
            self._update_stats()
            self._stats.write()

    def _farewell(self, end: End) -> None:
        if end is End.NOT_READY:
            self._record_failure(EngineStartError(f"{end.value} ({self._config.start_timeout:g} s)"))
        closers = [(self._save, _SAVE), (self._close, _FAREWELL)]
        threads = [(threading.Thread(target=close, daemon=True), seconds) for close, seconds in closers]
        for thread, _ in threads:
            thread.start()
        for thread, seconds in threads:
            thread.join(seconds)
        if end is End.NO_OWNER and self._directory.is_lock(self._lock):
            self._directory.remove()
        elif end is not End.REMOVED:
            self._directory.socket(self._state.run).unlink(missing_ok=True)
            self._update_stats(state=ENDED, reason=end.value, streams=0)
            self._stats.write()
            self._change_state(state=ENDED, reason=end.value)

    def _update_stats(self, **facts) -> None:
        store = self._evaluator.store if self._evaluator else None
        self._stats.update(
            **{"streams": self._lifetime.streams, "store": None if store is None else store.facts(), **facts}
        )

    def _save(self) -> None:
        if self._evaluator and self._evaluator.store is not None:
            self._evaluator.store.close()

    def _close(self) -> None:
        if self._server:
            self._server.shutdown()
        if self._evaluator:
            self._evaluator.close()

    def _change_state(self, **changes) -> None:
        with self._state_lock:
            self._state = self._state.with_(**changes)
            self._directory.write_state(self._state)

    def _record_failure(self, error: Exception) -> None:
        raw = encode_error(error)
        self._directory.write_failure(
            Failure(self._state.run, identity(self._config), raw["kind"], raw["message"], time.time())
        )

    def _facts(self, state: State) -> dict:
        return {
            "run": state.run,
            "pid": os.getpid(),
            "application": state.application,
            "model": state.config.model,
            "device": address_of(state.config.device),
            "host": socket.gethostname(),
            "log": str(self._directory.log(state.run)),
            "state": state.state,
            "reason": None,
            "started": self._started,
            "load_seconds": None,
            "streams": 0,
            "store": None,
            "describe": {},
        }


def main(arguments: list[str] | None = None, make_evaluator: Callable[[EngineConfig], Evaluator] | None = None) -> None:
    """Entry point of the process. `make_evaluator` is for tests; the default serves the configured model."""
    path, run, lock = sys.argv[1:] if arguments is None else arguments
    os.umask(0o077)
    sys.stdout, sys.stderr = _Unfailing(sys.stdout), _Unfailing(sys.stderr)
    os.set_inheritable(int(lock), False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_dir() / "triton"))  # compiled once a machine
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 <engine>: what every thread is doing, into the log
    try:
        host = Host(RuntimeDirectory(Path(path)), int(run), int(lock))
        host.start(make_evaluator or _make_evaluator)
    except Exception as error:
        traceback.print_exc()
        log(f"the engine did not start: {type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(1)
    host.wait_for_signals()


def _make_evaluator(config: EngineConfig) -> Evaluator:
    from .factory import make_evaluator  # late: a broken installation becomes a recorded failure

    return make_evaluator(config)


if __name__ == "__main__":
    main()
