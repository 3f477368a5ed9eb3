"""A progress line on the driver while AI operators run. Driver-side."""

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TextIO

from quail_spark.engine.stats import read_stats, total_operators

from .catalyst import planned, running_tasks
from .conf import QuailConf
from .planning import PlannedOperator

INTERVAL = 1.0  # seconds between looks at the engines' totals
IDLE = 5.0  # seconds without new answers after which an operator may be over
LOG_INTERVAL = 5.0  # seconds between lines where they can't be written in place
ERASE = "\x1b[K"

Tasks = Callable[[str], tuple[int, int]]  # an operator's name → finished and all tasks of its running stages


def start_progress(spark) -> "ProgressLine | None":
    """Start the line for this session's application where `spark.quail.progress` wants it."""
    wanted = QuailConf.of_session(spark)["progress"]
    if wanted == "false" or (wanted == "auto" and not sys.stderr.isatty()):
        return None
    return ProgressLine(spark.sparkContext.applicationId, sys.stderr, partial(running_tasks, spark))


class ProgressLine:
    """Writes one line, over and over in place, while the totals of the operators change. A daemon thread."""

    def __init__(self, application: str, stream: TextIO, tasks: Tasks = lambda name: (0, 0)):
        """`tasks` gives the finished and all tasks of the running stages that have an operator."""
        self._application, self._stream = application, stream
        self._time_left = TimeLeft(tasks, lambda name: expected_rows(planned.get(name)))
        self._before: dict[str, dict] = total_operators(read_stats(application))
        self._shown, self._logged = False, float("-inf")
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quail-spark progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join(timeout=2 * INTERVAL)

    def _run(self) -> None:
        while not self._end.wait(INTERVAL):
            now = total_operators(read_stats(self._application))
            changed = {n: t for n, t in now.items() if t["batches"] != self._before.get(n, {}).get("batches")}
            if changed:
                left = {name: self._time_left.of(name, self._before.get(name), changed[name]) for name in changed}
                self._show(line(changed, self._before, left))
            else:
                self._clear()
            self._time_left.forget_idle()
            self._before = now
        self._clear()

    def _show(self, text: str) -> None:
        """On a terminal in place of the line before; elsewhere, in a log, a line of its own and fewer of them."""
        if self._stream.isatty():
            self._write(f"\r{ERASE}{text}")
            self._shown = True
        elif time.monotonic() - self._logged >= LOG_INTERVAL:
            self._write(f"{text}\n")
            self._logged = time.monotonic()

    def _clear(self) -> None:
        if self._shown:
            self._write(f"\r{ERASE}")
            self._shown = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@dataclass
class _Run:
    """An operator in one query: seconds and rows when it was first seen at work, finished tasks when last seen."""

    began: float
    rows: int
    seen: float
    finished: int = 0


class TimeLeft:
    """How long the present run of each operator will take, by the share of its rows that are answered where Spark knows how
    many come in, else by the share of its tasks that are finished."""

    def __init__(self, tasks: Tasks, rows: Callable[[str], int | None], clock: Callable[[], float] = time.monotonic):
        """`tasks` as in ProgressLine; `rows`: how many rows, or pairs, Spark expects to come in (None: unknown)."""
        self._tasks, self._rows, self._clock = tasks, rows, clock
        self._runs: dict[str, _Run] = {}

    def of(self, name: str, before: dict | None, totals: dict) -> float | None:
        """Seconds left for an operator whose totals changed from `before` to `totals` within the last interval; None where
        that is unknown."""
        now = self._clock()
        finished, every = self._tasks(name)
        run = self._runs.get(name)
        if run is None or finished < run.finished:  # or other stages: another query, with the same operator
            run = self._runs[name] = _Run(now - INTERVAL, before["rows"] if before else 0, now)
        run.seen, run.finished = now, finished
        expected = self._rows(name)
        share = (totals["rows"] - run.rows) / expected if expected else finished / every if every else 0.0
        return (now - run.began) * (1 - share) / share if 0 < share < 1 else None

    def forget_idle(self) -> None:
        """What has not been at work for a while, and has no task that runs, is over."""
        late = [name for name, run in self._runs.items() if self._clock() - run.seen > IDLE]
        for name in late:
            if not self._tasks(name)[1]:
                del self._runs[name]


def expected_rows(operator: PlannedOperator | None) -> int | None:
    """What Spark expects to come in; for a join all pairs, of which one that stops at an anchor's first TRUE, or has an
    equality, asks an unknown share."""
    if operator is None or None in operator.rows:
        return None
    return None if operator.stops or operator.keyed else prod(operator.rows)


def line(changed: dict[str, dict], before: dict[str, dict], left: dict[str, float | None]) -> str:
    """The text for operators whose totals changed within the last interval; `left` in seconds."""
    parts = []
    for name, totals in changed.items():
        last = before.get(name, {})
        tokens = sum(totals[k] - last.get(k, 0) for k in ("fresh_tokens", "reused_tokens"))
        asked, passed = sum(totals["asked"]), sum(totals["passed"])
        rate = f", {passed / asked:.0%} TRUE" if asked else ""
        noun = "pairs" if totals["kind"] == "pairs" else "rows"
        parts.append(
            f"{' '.join(name.split())}: {totals['rows']:,} {noun}{rate}, {tokens / INTERVAL:,.0f} tokens/s, "
            f"{_duration(left.get(name))}"
        )
    return " · ".join(parts)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} left" if hours else f"{minutes}:{rest:02d} left"
