"""A private temporary directory for engine processes, and an engine process that misbehaves on request."""

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quail_spark.engine import launcher
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.processes import identify, own_process
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

FAKES = Path(__file__).with_name("fakes")


class Lab:
    """One application, in a temporary directory of its own; what it starts is killed afterwards."""

    application = "application-1"
    filter = OperatorSpec("op", "filter", (Predicate("Is {0} even?", (Argument(0),)),))
    join = OperatorSpec("join", "pairs", (Predicate("Is {0} like {1}?", (Argument(0), Argument(0, partner=True))),))

    def __init__(self, tmp: Path):
        self.tmp, self.journal_path = tmp, tmp / "journal"
        self.journal_path.touch()

    def config(self, model="ok", **settings) -> EngineConfig:
        return EngineConfig(f"fake://{model}", **settings)

    def connect(self, model="ok", owner=None, application=None, **settings):
        return connect(self.config(model, **settings), application or self.application, owner or own_process())

    def journal(self) -> list[str]:
        return self.journal_path.read_text().splitlines()

    def engines(self) -> list[int]:
        """Process ids of all engines that ever loaded."""
        return [int(line.split()[2]) for line in self.journal() if line.startswith("load")]

    def root(self) -> Path:
        return self.tmp / f"quail-spark-{os.geteuid()}"

    def kill_engines(self):
        for pid in {*self.engines(), *self._recorded()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _recorded(self):
        for path in self.root().glob("*/*/engine.json"):
            with suppress(FileNotFoundError):  # an engine that ends removes its directory
                state = json.loads(path.read_text())
                if state["process"] and state["state"] != "ended":
                    yield state["process"][0]


@contextmanager
def open_lab():
    tmp = Path(tempfile.mkdtemp(prefix="qs", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp))
        patch.setattr(tempfile, "tempdir", str(tmp))
        patch.setenv("PYTHONPATH", str(FAKES))
        patch.setenv("FAKE_JOURNAL", str(tmp / "journal"))
        patch.setattr(launcher, "HOST_MODULE", "fake_host")
        lab = Lab(tmp)
        try:
            yield lab
        finally:
            lab.kill_engines()
            for child in launcher._children.values():
                child.wait(60)
            launcher._children.clear()
            shutil.rmtree(tmp)


@pytest.fixture
def lab():
    """A fresh one."""
    with open_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def module_lab():
    with open_lab() as lab:
        yield lab


@pytest.fixture
def shared_lab(module_lab):
    """The module's; the journal keeps only that the engine was loaded."""
    engine = module_lab.connect()
    deadline = time.monotonic() + 60
    while engine.stats()["streams"]:
        assert time.monotonic() < deadline, "the test before left a stream open"
        time.sleep(0.01)
    loads = [line for line in module_lab.journal() if line.startswith("load")]
    module_lab.journal_path.write_text("".join(f"{line}\n" for line in loads))
    return module_lab


@pytest.fixture
def eventually():
    """Wait until a condition holds; fail after some seconds."""

    def wait(condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)
        return result

    return wait


@pytest.fixture
def gone(eventually):
    """Wait until a process is gone."""
    return lambda pid: eventually(lambda: identify(pid) is None)


@pytest.fixture
def python(lab):
    """Command line of a Python process that runs a script of ours with the fake host."""
    return lambda script, *arguments: [sys.executable, str(FAKES / script), *map(str, arguments)]
