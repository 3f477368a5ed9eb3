"""The private directory of one engine: `<tmp>/quail-spark-<uid>/<hash of the application>/<device>/`.

Several processes work on it, so every fact has one place:

* `engine.lock`            locked (flock) by the engine process for as long as it lives: who gets the lock may start one;
* `engine.json`            the present engine's `State`;
* `failure.json`           why the last start failed;
* `engine-<run>.log`       what engine number `run` of this directory printed;
* `engine-<run>.stats.json` its totals (see stats.py);
* `engine-<run>.sock`      the Unix socket it answers on.
"""

import fcntl
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from quail_spark.optimizer.errors import EngineStartError

from .config import EngineConfig
from .processes import ProcessId, is_alive

STARTING, READY, ENDED = "starting", "ready", "ended"

# A socket's path may have 103 bytes on every system; below the temporary directory ours takes up to 62.
_LONGEST_TMP = 41
_LONGEST_DEVICE = 7
_YOUNG = 60.0  # seconds in which a directory without an engine is taken for one that is just being made


@dataclass(frozen=True)
class State:
    """Contents of `engine.json`. `process` is None until the engine process has started; `reason` says why it ended;
    `deaths`: how many engines before it, in a row, were killed while they were starting."""

    state: str
    run: int
    application: str
    config: EngineConfig
    owners: tuple[ProcessId, ...]
    process: ProcessId | None = None
    reason: str | None = None
    deaths: int = 0

    def with_(self, **changes) -> "State":
        """A copy with these fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict:
        """JSON-serialisable."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: dict) -> "State":
        """Inverse of `to_dict`, also after JSON."""
        return State(
            **{
                **raw,
                "config": EngineConfig(**raw["config"]),
                "owners": tuple(ProcessId(*owner) for owner in raw["owners"]),
                "process": raw["process"] and ProcessId(*raw["process"]),
            }
        )


def identity(config: EngineConfig) -> str:
    """What makes two engines of one directory the same: all settings but the timeouts, and the device, which has another
    number in a process to which other GPUs are visible."""
    return replace(config, device="cpu", idle_timeout=0.0, start_timeout=1.0, silence_timeout=1.0).to_json()


@dataclass(frozen=True)
class Failure:
    """Contents of `failure.json`: the exception that ended start number `run`, at `time` (seconds since 1970)."""

    run: int
    identity: str
    kind: str
    message: str
    time: float = field(default_factory=time.time)


def root() -> Path:
    """The directory of all engines of this user on this machine."""
    tmp = tempfile.gettempdir()
    return Path(tmp if len(os.fsencode(tmp)) <= _LONGEST_TMP else "/tmp") / f"quail-spark-{os.geteuid()}"


def application_directory(application: str) -> Path:
    """The directory of all engines of one application."""
    return root() / blake2b(application.encode(), digest_size=6).hexdigest()


class RuntimeDirectory:
    """One engine's directory. Nothing is created before `prepare`."""

    def __init__(self, path: Path):
        self.path = path

    @staticmethod
    def of(application: str, device: str) -> "RuntimeDirectory":
        """The directory of this user's engine for `application` (a Spark application id) and `device` (an address, see
        devices.py)."""
        name = device.replace(":", "-")
        if len(name) > _LONGEST_DEVICE:
            name = f"g{blake2b(device.encode(), digest_size=3).hexdigest()}"
        return RuntimeDirectory(application_directory(application) / name)

    def prepare(self) -> None:
        """Create it if need be. Raises EngineStartError when a level of it isn't private to this user."""
        levels = (self.path.parent.parent, self.path.parent, self.path)
        for attempts_left in (2, 1, 0):
            try:
                for path in levels:
                    _private(path)
                return
            except FileNotFoundError:  # another process removed a level of it just now
                if not attempts_left:
                    raise EngineStartError(f"can't create the engine's directory {self.path}") from None

    def log(self, run: int) -> Path:
        """The log of engine number `run`."""
        return self.path / f"engine-{run}.log"

    def stats(self, run: int) -> Path:
        """The totals of engine number `run`."""
        return self.path / f"engine-{run}.stats.json"

    def socket(self, run: int) -> Path:
        """The socket of engine number `run`; never used twice, so that a client can't reach the wrong engine."""
        return self.path / f"engine-{run}.sock"

    def location(self, run: int) -> str:
        """The same as an Arrow Flight location."""
        return f"grpc+unix://{self.socket(run)}"

    def next_run(self) -> int:
        """A number that no engine of this directory had."""
        return 1 + max((int(path.stem.removeprefix("engine-")) for path in self.path.glob("engine-*.log")), default=0)

    def state(self) -> State | None:
        """The present or last engine's state; None when there was none, or another version of this package wrote it."""
        raw = read_json(self.path / "engine.json")
        with suppress(KeyError, TypeError):
            return raw and State.from_dict(raw)

    def write_state(self, state: State) -> None:
        """Replace it. Only the holder of the lock may."""
        write_json(self.path / "engine.json", state.to_dict())

    def failure(self) -> Failure | None:
        """Why the last start that failed did so."""
        raw = read_json(self.path / "failure.json")
        return raw and Failure(**raw)

    def write_failure(self, failure: Failure) -> None:
        """Replace it. Only the holder of the lock may."""
        write_json(self.path / "failure.json", asdict(failure))

    def try_lock(self) -> int | None:
        """A file descriptor that holds the lock, or None while another process holds it.

        The lock belongs to the open file: handed to a child process it stays held until the child ends, however that
        happens, if the descriptor is closed here (never unlocked).
        """
        try:
            lock = os.open(self.path / "engine.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # removed since `prepare`: the caller tries again
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        if self.is_lock(lock):
            return lock
        os.close(lock)
        return None

    def is_lock(self, lock: int) -> bool:
        """Whether the open file `lock` still is this directory's lock file, not one that was removed."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.path / "engine.lock"))
        except OSError:
            return False

    def touch(self) -> None:
        """Keep sweepers of old temporary files away."""
        for path in (self.path.parent.parent, self.path.parent, self.path, *self.path.iterdir()):
            with suppress(OSError):
                os.utime(path)

    def remove(self) -> None:
        """Delete it, and what is empty above it. Only the holder of the lock may."""
        shutil.rmtree(self.path, ignore_errors=True)
        for path in (self.path.parent, self.path.parent.parent):
            with suppress(OSError):
                path.rmdir()

    def is_abandoned(self) -> bool:
        """Whether no owner of its last engine lives."""
        state = self.state()
        if state is None:
            with suppress(OSError):
                return time.time() - self.path.stat().st_mtime > _YOUNG
            return False
        return not any(is_alive(owner) for owner in state.owners)


def directories(above: Path) -> Iterator[RuntimeDirectory]:
    """The engine directories of one application (`above` its directory)."""
    yield from map(RuntimeDirectory, subdirectories(above))


def subdirectories(above: Path) -> Iterator[Path]:
    """In order of their names; none where `above` is not there."""
    with suppress(OSError):
        yield from (path for path in sorted(above.iterdir()) if path.is_dir())


def remove_abandoned(keep: RuntimeDirectory) -> None:
    """Delete what applications that have ended left behind, a crash of everything for example."""
    with suppress(OSError):
        for application in list(keep.path.parent.parent.iterdir()):
            for directory in list(directories(application)):
                if directory.path != keep.path and directory.is_abandoned():
                    _remove_unless_alive(directory)
            with suppress(OSError):
                application.rmdir()


def _remove_unless_alive(directory: RuntimeDirectory) -> None:
    lock = directory.try_lock()
    if lock is None:
        return
    try:
        if directory.is_abandoned():
            directory.remove()
    finally:
        os.close(lock)


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, for an error message; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 200 * lines))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def read_json(path: Path) -> dict | None:
    """The contents of a file of `write_json`; None when there is none."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: dict) -> None:
    """Replace the file at once: a reader sees the old text or the new. One thread at a time for a file."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.touch(mode=0o600)
        draft.write_text(json.dumps(value, default=_plain))
        draft.replace(path)
    except OSError:  # a full disk, say
        draft.unlink(missing_ok=True)
        raise


def _plain(value):
    """numpy's numbers as Python's; anything else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _private(path: Path) -> None:
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        facts = path.lstat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EngineStartError(f"can't create the engine's directory {path}: {error.strerror}") from None
    if stat.S_ISLNK(facts.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(facts.st_mode):
        problem = "is not a directory"
    elif facts.st_uid != os.geteuid():
        problem = f"belongs to user {facts.st_uid}"
    elif facts.st_mode & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(facts.st_mode):04o})"
    else:
        return
    raise EngineStartError(
        f"{path} {problem}; accepted: a directory of user {os.geteuid()} with mode 0700. Remove it, or set TMPDIR to "
        "another directory for Spark's processes"
    )
