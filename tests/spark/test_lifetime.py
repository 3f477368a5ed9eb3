"""Engines and the applications that they work for: none outlives its own, and none is shared."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quail_spark.engine.processes import identify, is_alive
from quail_spark.engine.scripted import scripted_answer

from .lifetime_job import ASK

GONE = 60.0  # seconds within which an engine ends after its application


class Application:
    """A running lifetime_job.py."""

    def __init__(self, *settings: str):
        job = Path(__file__).with_name("lifetime_job.py")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-P", str(job), *settings]
        self.driver = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        self.facts: dict = {}
        self.started = [identify(self.driver.pid)]

    def send(self, line: str) -> None:
        self.driver.stdin.write(f"{line}\n")

    def receive(self) -> dict:
        text = self.driver.stdout.readline()
        assert text, "the application ended early"
        self.facts = json.loads(text)
        self.started += [identify(pid) for pid in (self.facts["jvm"], *self.facts["engines"])]
        return self.facts

    def ask(self, rows: int) -> list[int]:
        """Run a query; the rows that pass are checked."""
        self.send(str(rows))
        got = self.receive()["rows"]
        assert got == [i for i in range(rows) if scripted_answer(ASK, [f"row {i}"], rate=0.5, seed=6)]
        return self.facts["engines"]

    def clean_up(self) -> None:
        """Kill what is left."""
        for process in filter(None, self.started):
            if is_alive(process):
                os.kill(process.pid, signal.SIGKILL)
        self.driver.wait()
        self.driver.stdout.close()
        with suppress(OSError):
            self.driver.stdin.close()


@contextmanager
def applications(*settings: tuple[str, ...]):
    running = [Application(*given) for given in settings]
    try:
        yield running
    finally:
        for application in running:
            application.clean_up()


def gone(pid: int, seconds: float = GONE) -> bool:
    deadline = time.monotonic() + seconds
    while identify(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def test_applications_do_not_share_an_engine_and_each_engine_ends_with_its_own():
    with applications((), ()) as (first, second):
        for application in (first, second):
            application.send("20")
        for application in (first, second):
            application.receive()
        (one,), (other,) = first.facts["engines"], second.facts["engines"]
        assert one != other and first.facts["application"] != second.facts["application"]
        assert first.facts["directory"] != second.facts["directory"]
        first.driver.kill()
        assert gone(one)
        assert not Path(first.facts["directory"]).exists()
        assert second.ask(30) == [other] and identify(other)
        second.driver.stdin.close()  # and an application that ends in peace
        assert gone(other) and second.driver.wait(60) == 0


@pytest.mark.parametrize("victim", ["driver", "jvm"])
def test_an_application_that_is_killed_at_work_leaves_nothing(victim):
    with applications(()) as (application,):
        application.send("0 3000")  # for minutes
        (engine,) = application.receive()["engines"]
        pids = {"driver": application.driver.pid, "jvm": application.facts["jvm"]}
        assert identify(engine)
        os.kill(pids[victim], signal.SIGKILL)
        assert gone(engine)
        assert not Path(application.facts["directory"]).exists()


def test_an_idle_engine_ends_and_the_next_query_starts_another():
    with applications(("engine_idle_timeout=1s",)) as (application,):
        (first,) = application.ask(20)
        assert gone(first) and application.driver.poll() is None
        ended, second = application.ask(25)
        assert ended == first != second and gone(second)
