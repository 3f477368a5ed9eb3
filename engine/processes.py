"""Which process is which: identities that survive the reuse of process ids, and the process that owns an engine."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class ProcessId(NamedTuple):
    """A process: its id and when it started (clock ticks since boot, as text; on systems without /proc a date)."""

    pid: int
    start: str


class _Facts(NamedTuple):
    parent: int
    start: str
    command: tuple[str, ...]


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has `pid` now; None when there is none, or only a zombie."""
    facts = _facts(pid)
    return facts and ProcessId(pid, facts.start)


def is_alive(process: ProcessId) -> bool:
    """Whether this very process, not a later one with the same id, still runs."""
    return identify(process.pid) == process


def kill(process: ProcessId) -> bool:
    """End this very process at once; False where it is gone already."""
    if not is_alive(process):
        return False
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return True


def own_process() -> ProcessId:
    """The identity of the calling process."""
    return _must(os.getpid())


def owner_process() -> ProcessId:
    """Executor-side: the process whose end means that this application no longer needs an engine here.

    Spark ends idle Python workers after a minute, so a worker can't be the owner. Workers are forked from a daemon
    (same command line) that lives as long as the executor's SparkEnv; without the daemon the executor's JVM starts
    `pyspark.worker` itself. Everything else owns its engine itself: a driver, a notebook, a script.
    """
    own = _facts(os.getpid())
    parent = _facts(own.parent) if own and own.parent > 1 else None
    if parent and (parent.command == own.command or "pyspark.worker" in own.command):
        return ProcessId(own.parent, parent.start)
    return own_process()


def _must(pid: int) -> ProcessId:
    process = identify(pid)
    if process is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return process


def _facts(pid: int) -> _Facts | None:
    return _facts_of_proc(pid) if (_PROC / "self" / "stat").exists() else _facts_of_ps(pid)


def _facts_of_proc(pid: int) -> _Facts | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
        command = (_PROC / str(pid) / "cmdline").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # proc(5): from field 3 on; the name in brackets may hold anything
    state, parent, start = fields[0], int(fields[1]), fields[19]
    return None if state in "ZX" else _Facts(parent, start, tuple(command.split("\0")))


def _facts_of_ps(pid: int) -> _Facts | None:
    """For systems without /proc, such as macOS."""
    columns = ["-o", "stat=", "-o", "ppid=", "-o", "lstart=", "-o", "command="]
    shown = subprocess.run(
        ["ps", "-ww", "-p", str(pid), *columns], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    )
    fields = shown.stdout.split()
    if len(fields) < 7 or fields[0].startswith("Z"):
        return None
    return _Facts(int(fields[1]), " ".join(fields[2:7]), tuple(fields[7:]))
