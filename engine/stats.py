"""What an engine did so far: totals per operator, written to a file that a driver on the same machine can read.

Written about once a second while something changes, and before the last answer of a stream leaves.

The file, `engine-<run>.stats.json`, holds one object (schema 1; times in seconds, moments in seconds since 1970):

    schema            1
    run, pid          number of this engine in its directory; its process id
    application       Spark application id
    model, device     as in the engine's configuration; a GPU by its address (see devices.py)
    host              name of the machine
    log               path of the engine's log
    state, reason     "ready" or "ended", and why it ended (null before; a killed engine stays "ready")
    started, updated  when the process began to load the model, when this was written
    load_seconds      from then until the engine was ready
    busy_seconds      wall time in which at least one batch was being answered
    streams           streams open now
    store             `AnswerStore.facts()`; null without a store
    describe          the evaluator's `describe()` after loading
    operators         {name: totals}; two operators of one name that ask different questions: "name", "name (2)"
      kind, layout, templates   of its specification
      first, last               moments of its first and last answered batch
      batches, errors           answered batches; answers with the code FAILED
      rows, evaluations, remembered, fresh_tokens, reused_tokens, recomputed_tokens, seconds, asked, passed
                                work done, also for rows that are computed again after a crash: sums of `Counts` (see evaluator.py); asked and passed are lists, one number per predicate
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import count
from pathlib import Path
from threading import Lock

from quail_spark.optimizer.plan import OperatorSpec

from .evaluator import Answers, Counts
from .processes import ProcessId, is_alive
from .runtime_dir import application_directory, directories, read_json, root, subdirectories, write_json

SCHEMA = 1
_COUNTS = tuple(field.name for field in fields(Counts))


class Stats:
    """The totals of one engine process. Thread-safe."""

    def __init__(self, path: Path, facts: dict):
        """`facts` are the fields that stay the same, and the first values of `state` and `reason`."""
        self._path, self._facts = path, {"schema": SCHEMA, **facts}
        self._operators: dict[str, dict] = {}
        self._lock, self._writing = Lock(), Lock()
        self._running = 0
        self._busy = self._busy_since = 0.0
        self._changed = True

    def update(self, **facts) -> None:
        """Set fields of the whole, such as `state` or `streams`."""
        with self._lock:
            self._changed |= any(self._facts.get(name) != value for name, value in facts.items())
            self._facts.update(facts)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around the answering of a batch; may overlap in several threads."""
        with self._lock:
            if self._running == 0:
                self._busy_since = time.monotonic()
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if self._running == 0:
                    self._busy += time.monotonic() - self._busy_since

    def add(self, spec: OperatorSpec, answers: Answers) -> None:
        """Count one answered batch."""
        with self._lock:
            totals = self._totals(spec)
            now = time.time()
            totals["first"] = totals["first"] or now
            totals["last"] = now
            totals["batches"] += 1
            totals["errors"] += len(answers.errors)
            for name in _COUNTS:
                totals[name] = _plus(totals[name], getattr(answers.counts, name))
            self._changed = True

    def snapshot(self) -> dict:
        """The object of the file, as of now."""
        with self._lock:
            busy = self._busy + (time.monotonic() - self._busy_since if self._running else 0.0)
            operators = {name: dict(totals) for name, totals in self._operators.items()}
            return {**self._facts, "updated": time.time(), "busy_seconds": busy, "operators": operators}

    def write(self) -> None:
        """Write the file if something changed since the last time. A full disk, say, is no reason to end a job."""
        with self._writing, suppress(OSError):
            if self._changed or self._running:
                self._changed = False
                write_json(self._path, self.snapshot())

    def _totals(self, spec: OperatorSpec) -> dict:
        asks = {"kind": spec.kind, "layout": spec.layout, "templates": [p.template for p in spec.predicates]}
        for number in count(1):
            name = spec.name if number == 1 else f"{spec.name} ({number})"
            totals = self._operators.get(name)
            if totals is None:
                zeros = {name: value if isinstance(value, list) else 0 for name, value in vars(Counts()).items()}
                totals = self._operators[name] = {
                    **asks,
                    "first": None,
                    "last": None,
                    "batches": 0,
                    "errors": 0,
                    **zeros,
                }
            if all(totals[key] == value for key, value in asks.items()):
                return totals


def read_stats(application: str) -> list[dict]:
    """Driver- or executor-side: the totals of every engine of a Spark application on this machine, in order of start.

    Engines that ended or were killed are among them until the application ends. Each is the object described above
    and `alive`, whether that engine still runs.
    """
    return sorted(_read(application_directory(application)), key=lambda stats: stats["started"])


def read_all_stats() -> list[dict]:
    """The same for every application of this user on this machine."""
    found = (stats for application in subdirectories(root()) for stats in _read(application))
    return sorted(found, key=lambda stats: stats["started"])


def _read(application: Path) -> Iterator[dict]:
    for directory in directories(application):
        state = directory.state()
        for path in directory.path.glob("engine-*.stats.json"):
            stats = read_json(path)
            if stats and stats.get("schema") == SCHEMA:
                process = state.process if state and state.run == stats["run"] and stats["state"] != "ended" else None
                yield {**stats, "alive": process is not None and is_alive(ProcessId(*process))}


def total_operators(stats: Iterable[dict]) -> dict[str, dict]:
    """Totals per operator name over several engines (objects of `read_stats`), such as one that crashed and its heir."""
    totals: dict[str, dict] = {}
    for name, part in (item for engine in stats for item in engine["operators"].items()):
        whole = totals.get(name)
        totals[name] = part if whole is None else _merged(whole, part)
    return totals


def _merged(a: dict, b: dict) -> dict:
    sums = {name: _plus(a[name], b[name]) for name in ("batches", "errors", *_COUNTS)}
    return {**a, "first": min(a["first"], b["first"]), "last": max(a["last"], b["last"]), **sums}


def _plus(total, value):
    """Numbers are added; lists are added place by place, the shorter one filled up with zeros."""
    if not isinstance(value, list):
        return total + value
    length = max(len(total), len(value))
    return [a + b for a, b in zip(_padded(total, length), _padded(value, length), strict=True)]


def _padded(values: list, length: int) -> list:
    return values + [0] * (length - len(values))
