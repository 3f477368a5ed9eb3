"""Streams over a living engine: order, laziness, early ends, sizes, errors."""

import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from quail_spark.engine import client as client_module
from quail_spark.optimizer.errors import EngineError, QuailError, RowError
from quail_spark.optimizer.plan import FAILED, NULL, OperatorSpec, Predicate


@pytest.fixture
def lab(shared_lab):
    """The engine of one test serves the next."""
    return shared_lab


def codes(answers):
    return [batch.codes[:, 0].tolist() for batch in answers]


def expected(batches):
    return [[int(len(row[0]) % 2 == 0) for row in batch] for batch in batches]


def test_answers_come_in_order(lab):
    batches = [[["x" * (i * j)] for j in range(i % 7)] for i in range(40)]
    engine = lab.connect()
    assert codes(engine.rows(lab.filter, batches)) == expected(batches)
    pairs = [([[f"{i}"], ["bb"]], [i, i + 1], [[["c"]] * i, [["dd"], ["e"]]]) for i in range(5)]
    assert codes(engine.pairs(lab.join, pairs)) == [[1] * i + [1, 0] for i in range(5)]


def test_input_is_pulled_by_the_callers_thread_a_few_batches_ahead(lab):
    pulled = []

    def source():
        for i in range(20):
            pulled.append(threading.current_thread())
            yield [[f"{i}"]]

    answers = lab.connect().rows(lab.filter, source())
    assert not pulled
    for n, _ in enumerate(answers, start=1):
        assert len(pulled) <= n - 1 + client_module.WINDOW_BATCHES
    assert set(pulled) == {threading.current_thread()} and len(pulled) == 20


def test_the_window_is_bounded_in_bytes(lab, monkeypatch):
    monkeypatch.setattr(client_module, "WINDOW_BYTES", 1000)
    pulled = []
    answers = lab.connect().rows(lab.filter, ([["x" * 900]] for i in range(4) if pulled.append(i) is None))
    next(answers)
    assert len(pulled) == 2
    assert len(list(answers)) == 3


def test_the_engine_has_work_while_the_caller_is_busy(lab, eventually):
    answers = lab.connect().rows(lab.filter, ([[f"{i}"]] for i in range(10)))
    next(answers)
    eventually(lambda: lab.journal().count("rows 1") == client_module.WINDOW_BATCHES)
    answers.close()


def test_closing_early_ends_the_session_and_leaves_nothing(lab, eventually):
    engine = lab.connect()
    list(engine.rows(lab.filter, [[["warm"]]]))
    threads = threading.active_count()

    answers = engine.rows(lab.filter, [[["a"]], [["hang"]], [["bb"]]])
    assert next(answers).codes.tolist() == [[0]]
    eventually(lambda: "hangs" in lab.journal())
    started = time.monotonic()
    answers.close()
    assert time.monotonic() - started < 30  # it would hang for 60
    assert threading.active_count() == threads
    eventually(lambda: lab.journal().count("close") == lab.journal().count("open op"))
    assert "cancel" in lab.journal()
    assert engine.stats()["streams"] == 0
    assert codes(engine.rows(lab.filter, [[["abcd"]]])) == [[1]]


def test_a_batch_that_nobody_waits_for_is_not_begun(lab, eventually):
    answers = lab.connect().rows(lab.filter, [[["a"]], [["hang"]], [["a"], ["b"]]])
    next(answers)
    eventually(lambda: "hangs" in lab.journal())
    answers.close()
    eventually(lambda: lab.journal().count("close") == lab.journal().count("open op"))
    assert "rows 2" not in lab.journal()


def test_what_the_input_raises_passes_through(lab, eventually):
    def source():
        yield from [[["a"]]] * client_module.WINDOW_BATCHES
        raise LookupError("the upstream operator failed")

    answers = lab.connect().rows(lab.filter, source())
    next(answers)
    with pytest.raises(LookupError, match="upstream"):
        next(answers)
    eventually(lambda: lab.journal().count("close") == lab.journal().count("open op"))


def test_a_killed_client_ends_its_session(lab, eventually):
    engine = lab.connect()
    script = f"""
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.optimizer.plan import OperatorSpec
spec = OperatorSpec.from_json({lab.filter.to_json()!r})
engine = connect(EngineConfig("fake://ok"), {lab.application!r})
list(engine.rows(spec, [[["a"]], [["hang"]], [["bb"]]]))
"""
    client = subprocess.Popen([sys.executable, "-c", script])
    eventually(lambda: "hangs" in lab.journal())
    client.kill()
    client.wait()
    eventually(lambda: "close" in lab.journal() and engine.stats()["streams"] == 0)


def test_sizes(lab):
    engine = lab.connect()
    assert list(engine.rows(lab.filter, [])) == []
    assert codes(engine.rows(lab.filter, [[], [["a"]], []])) == [[], [0], []]
    assert codes(engine.pairs(lab.join, [([], [], []), ([["a"]], [1], [[]])])) == [[], []]
    documents = [["x" * (1 << 20)] for _ in range(64)]  # 64 MiB
    assert codes(engine.rows(lab.filter, [documents, [["b"]]])) == [[1] * 64, [0]]
    many = [[""]] * 300_000  # many answers
    assert codes(engine.rows(lab.filter, [many])) == [[1] * 300_000]


def test_no_columns(lab):
    spec = OperatorSpec("op", "answers", (Predicate("Is the sky blue?", ()),))
    assert codes(lab.connect().rows(spec, [[[], []], []])) == [[1, 1], []]


def test_record_batches(lab):
    batch = pa.record_batch({"a": ["a", "bb", None]})
    assert codes(lab.connect().rows(lab.filter, [batch])) == [[0, 1, NULL]]


def test_row_errors(lab):
    (answers,) = lab.connect().rows(lab.filter, [[["a"], ["fail"]]])
    assert answers.codes[:, 0].tolist() == [0, FAILED]
    assert answers.errors == [(1, 0, "row is too long: 9 tokens; accepted: 8")]
    assert answers.counts.rows == 2 and answers.counts.asked == [2]


def test_an_error_of_the_engine_is_the_same_error_here(lab):
    engine = lab.connect()
    answers = engine.rows(lab.filter, [[["a"]], [["refuse"]], [["a"]]])
    assert next(answers).codes.tolist() == [[0]]
    with pytest.raises(RowError) as caught:
        next(answers)
    assert str(caught.value) == "row 'refuse' can't be answered — ask less"
    assert codes(engine.rows(lab.filter, [[["bb"]]])) == [[1]]
    assert len(lab.engines()) == 1


def test_an_unexpected_error_comes_with_the_log(lab):
    engine = lab.connect()
    with pytest.raises(EngineError, match=r"ZeroDivisionError.*a bug in the model") as caught:
        list(engine.rows(lab.filter, [[["bug"]]]))
    assert str(engine.address.directory.log(1)) in str(caught.value)
    assert "fake_host.py" in str(caught.value)  # the engine's traceback
    assert codes(engine.rows(lab.filter, [[["bb"]]])) == [[1]]


def test_a_bad_request_is_an_error_not_a_hang(lab):
    engine = lab.connect()
    with pytest.raises(QuailError, match="refers to column 0"):
        list(engine.rows(lab.filter, [[["a"]], [[]]]))
    with pytest.raises(QuailError, match="kind"):
        engine.rows(lab.join, [])
    with pytest.raises(QuailError, match="kind"):
        engine.pairs(lab.filter, [])


def test_streams_run_side_by_side(lab):
    engine = lab.connect()
    batches = [[["a" * i]] for i in range(3 * client_module.WINDOW_BATCHES)]
    results, all_are_here = {}, threading.Barrier(6)

    def source():
        """Each stream has had answers and wants more, before any of them goes on."""
        yield from batches[: 2 * client_module.WINDOW_BATCHES]
        all_are_here.wait(60)
        yield from batches[2 * client_module.WINDOW_BATCHES :]

    def run(name):
        results[name] = codes(engine.rows(lab.filter, source()))

    threads = [threading.Thread(target=run, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [expected(batches)] * 6
    assert len(lab.engines()) == 1


def test_random_batches(lab):
    random = np.random.default_rng()
    engine = lab.connect()
    batches = [[["é" * int(n)] for n in random.integers(0, 3000, random.integers(0, 50))] for _ in range(30)]
    assert codes(engine.rows(lab.filter, batches)) == expected(batches)
