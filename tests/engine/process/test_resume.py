"""A job whose engine is killed, and that starts again, computes only what the answer store lacks."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quail_spark.engine import launcher
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.processes import identify, own_process
from quail_spark.engine.scripted import scripted_answer
from quail_spark.engine.stats import read_stats
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

ASKS = ("{0} is new", "{0} is odd")
SPEC = OperatorSpec("op", "answers", tuple(Predicate(ask, (Argument(0),)) for ask in ASKS))
TEXTS = [f"message number {i}" for i in range(600)]
BATCHES = [[[text] for text in TEXTS[start : start + 10]] for start in range(0, len(TEXTS), 10)]


class Job:
    """Engines that share a store."""

    def __init__(self, lab):
        self.lab, self.store = lab, lab.tmp / "store"
        self.config = EngineConfig("scripted://hash?seed=3&delay_ms=5", answer_store=str(self.store))

    def connect(self, application, owner=None):
        return connect(self.config, application, owner or own_process())

    def stored(self) -> int:
        keys = set()
        for path in self.store.glob("*/answers-*.parquet"):
            with suppress(FileNotFoundError):  # merged into another meanwhile
                keys |= set(pq.read_table(path)["key"].to_pylist())
        return len(keys)


@pytest.fixture
def job(lab, monkeypatch):
    monkeypatch.setattr(launcher, "HOST_MODULE", "store_host")
    monkeypatch.setenv("STORE_FLUSH", "0.1")
    return Job(lab)


def kill(engine, eventually):
    pid = engine.stats()["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: identify(pid) is None)


def test_a_job_that_starts_again_computes_the_rest(job, eventually):
    engine = job.connect("first")
    stream = engine.rows(SPEC, BATCHES)
    for _ in range(36):
        next(stream)
    eventually(lambda: job.stored() >= 36 * 20)  # one interval later
    kill(engine, eventually)
    stream.close()
    before = job.stored()
    assert 36 * 20 <= before <= 40 * 20  # a client has at most four more batches on their way

    answers = list(job.connect("second").rows(SPEC, BATCHES))
    assert sum(batch.counts.evaluations for batch in answers) == 1200 - before
    assert sum(batch.counts.remembered for batch in answers) == before
    fresh = sum(batch.counts.fresh_tokens for batch in answers)
    assert fresh == 6 * (1200 - before)  # each prompt is six words
    codes = [code for batch in answers for row in batch.codes.tolist() for code in row]
    assert codes == [int(scripted_answer(ask, [text], seed=3)) for text in TEXTS for ask in ASKS]

    third = list(job.connect("third").rows(SPEC, BATCHES))
    assert sum(batch.counts.fresh_tokens + batch.counts.evaluations for batch in third) == 0


def test_an_engine_that_ends_with_its_application_writes_what_it_has(job, monkeypatch, eventually):
    monkeypatch.setenv("STORE_FLUSH", "100")
    sleeper = subprocess.Popen(["sleep", "60"])
    engine = job.connect("first", identify(sleeper.pid))
    pid = engine.stats()["pid"]
    stream = engine.rows(SPEC, BATCHES[:5] + BATCHES)
    for _ in range(5):
        next(stream)
    assert job.stored() == 0
    sleeper.kill()
    sleeper.wait()
    eventually(lambda: identify(pid) is None)
    stream.close()
    assert job.stored() >= 5 * 20


def test_the_end_of_a_stream_writes_what_it_has(job, monkeypatch, eventually):
    monkeypatch.setenv("STORE_FLUSH", "100")
    engine = job.connect("first")
    list(engine.rows(SPEC, BATCHES[:5]))
    eventually(lambda: job.stored() == 100)
    eventually(lambda: read_stats("first")[0]["store"]["written"] == 100)
    assert read_stats("first")[0]["store"]["failures"] == 0


def test_a_store_that_becomes_unwritable_ends_no_job(job, eventually):
    engine = job.connect("first")
    stream = engine.rows(SPEC, BATCHES)
    next(stream)
    eventually(lambda: job.stored() >= 20)
    (directory,) = job.store.iterdir()

    def replaced() -> bool:
        for path in directory.iterdir():
            path.unlink(missing_ok=True)
        try:
            directory.rmdir()
        except OSError:  # a file more was written meanwhile
            return False
        directory.write_text("a file in its place")
        return True

    eventually(replaced)
    assert len(list(stream)) == 59
    eventually(lambda: read_stats("first")[0]["store"]["failures"])
    assert "could not be written" in read_stats("first")[0]["store"]["failure"]
    log = Path(read_stats("first")[0]["log"]).read_text()
    assert log.count("can't be written in the store") == 1


def test_a_store_that_cannot_be_used_is_an_error_at_the_start(job):
    job.store.write_text("a file in its place")
    with pytest.raises(ConfigError, match=r"spark\.quail\.answerStore is '.*store', which can't be read and written"):
        job.connect("first")
