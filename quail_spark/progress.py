"""A progress line on the driver while AI operators run. Driver-side."""

import sys
import threading
import time
from typing import TextIO

from quail_spark.engine.stats import read_stats, total_operators

from .catalyst import planned
from .conf import QuailConf

INTERVAL = 1.0  # seconds between looks at the engines' totals
LOG_INTERVAL = 5.0  # seconds between lines where they can't be written in place
ERASE = "\x1b[K"


def start_progress(spark) -> "ProgressLine | None":
    """Start the line for this session's application where `spark.quail.progress` wants it."""
    wanted = QuailConf.of_session(spark)["progress"]
    if wanted == "false" or (wanted == "auto" and not sys.stderr.isatty()):
        return None
    return ProgressLine(spark.sparkContext.applicationId, sys.stderr)


class ProgressLine:
    """Writes one line, over and over in place, while the totals of the operators change. A daemon thread."""

    def __init__(self, application: str, stream: TextIO):
        self._application, self._stream = application, stream
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
                self._show(line(changed, self._before, planned.get))
            else:
                self._clear()
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


def line(changed: dict[str, dict], before: dict[str, dict], planned_operator) -> str:
    """The text for operators whose totals changed within the last interval.

    Time left is told where Spark knows how many rows come in.
    """
    parts = []
    for name, totals in changed.items():
        last = before.get(name, {})
        tokens = sum(totals[k] - last.get(k, 0) for k in ("fresh_tokens", "reused_tokens"))
        asked, passed = sum(totals["asked"]), sum(totals["passed"])
        rate = f", {passed / asked:.0%} TRUE" if asked else ""
        left = _left(totals, planned_operator(name))
        noun = "pairs" if totals["kind"] == "pairs" else "rows"
        parts.append(
            f"{' '.join(name.split())}: {totals['rows']:,} {noun}{rate}, {tokens / INTERVAL:,.0f} tokens/s{left}"
        )
    return " · ".join(parts)


def _left(totals: dict, operator) -> str:
    if operator is None or None in operator.rows or not totals["rows"] or not totals["first"]:
        return ""
    expected = 1
    for rows in operator.rows:
        expected *= rows
    elapsed = max(INTERVAL, totals["last"] - totals["first"])
    seconds = elapsed * (expected - totals["rows"]) / totals["rows"]
    return f", {int(seconds // 60)}:{int(seconds % 60):02d} left" if seconds > 0 else ""
