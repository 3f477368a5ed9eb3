"""An engine that dies under its streams: the job goes on, or ends with an error that says what happened."""

import logging
import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from quail_spark.engine import connection, watch
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.connection import Connection, EngineGone
from quail_spark.engine.lifetime import End, Lifetime
from quail_spark.engine.processes import ProcessId, identify
from quail_spark.engine.runtime_dir import RuntimeDirectory, State
from quail_spark.engine.server import EngineServer
from quail_spark.engine.stats import Stats, read_stats, total_operators
from quail_spark.engine.wire import Codec
from quail_spark.optimizer.errors import EngineCrashError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def texts(answers):
    return [batch.codes[:, 0].tolist() for batch in answers]


def even(batches):
    return [[int(len(row[0]) % 2 == 0) for row in batch] for batch in batches]


def test_killed_in_the_middle_of_a_stream(lab, eventually):
    engine = lab.connect()
    batches = [[[f"wait 0.0{i}"], ["x" * i]] for i in range(1, 10)]
    answers = engine.rows(lab.filter, iter(batches))
    got = [next(answers), next(answers)]
    (first,) = lab.engines()
    kill(first)
    got += answers
    assert texts(got) == even(batches)
    first, second = lab.engines()
    assert engine.stats()["pid"] == second
    assert identify(first) is None


def test_killed_in_the_middle_of_a_join(lab):
    blocks = [[["a"], ["bb"]], [["5"]]]
    batches = [([["x" * i], ["wait 0.0"]], [i, i + 1], blocks) for i in range(8)]
    answers = lab.connect().pairs(lab.join, batches)
    got = [next(answers)]
    kill(lab.engines()[0])
    got += answers
    assert texts(got) == [[(i + 1) % 2 == 0, (i + 2) % 2 == 0, len("wait 0.05") % 2 == 0] for i in range(8)]


def test_a_batch_that_kills_once(lab):
    answers = lab.connect().rows(lab.filter, [[["a"]], [["kill once"]], [["bb"]]])
    assert texts(answers) == [[0], [0], [1]]
    assert len(lab.engines()) == 2


def test_a_batch_that_kills_always(lab, eventually):
    answers = lab.connect().rows(lab.filter, [[["a"]], [["kill"], ["b"]], [["c"]]])
    assert next(answers).codes.tolist() == [[0]]
    with pytest.raises(EngineCrashError) as caught:
        list(answers)
    message = str(caught.value)
    assert "lost 3 times in a row at the same place of operator 'op': batch 2 of this task, 2 rows" in message
    assert "killed by signal 9" in message and "engine-3.log" in message and "ready after" in message
    assert len(lab.engines()) == 3
    assert texts(lab.connect().rows(lab.filter, [[["bb"]]])) == [[1]]  # the next task finds a new one


def test_a_poisoned_device_ends_its_process(lab):
    with pytest.raises(EngineCrashError, match=r"exit status 70(?s:.*)device-side assert triggered"):
        list(lab.connect().rows(lab.filter, [[["poison"]]]))
    assert len(lab.engines()) == 3


def test_progress_renews_the_patience(lab):
    engine = lab.connect()
    answers = engine.rows(lab.filter, ([[f"{i}"]] for i in range(10)))
    for _ in range(3):
        next(answers)
        kill(engine.stats()["pid"])
    assert len(list(answers)) == 7


def test_many_streams_share_one_successor(lab):
    engines = [lab.connect() for _ in range(3)]
    batches = [[[f"wait 0.3{i}"]] for i in range(8)]
    results = []

    def run(engine):
        results.append(texts(engine.rows(lab.filter, batches)))

    threads = [threading.Thread(target=run, args=(engine,)) for engine in engines for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    kill(lab.engines()[0])
    for thread in threads:
        thread.join(60)
    assert results == [even(batches)] * 6
    assert len(lab.engines()) == 2


def test_an_engine_that_has_ended_is_replaced_when_needed(lab, eventually):
    engine = lab.connect()
    (first,) = lab.engines()
    engine.stop()
    eventually(lambda: identify(first) is None)
    stats = engine.stats()  # of the one that ended; asking starts none
    assert stats["pid"] == first and stats["state"] == "ended" and engine.describe()["model"] == "fake://ok"
    assert len(lab.engines()) == 1
    assert texts(engine.rows(lab.filter, [[["bb"]]])) == [[1]]
    assert len(lab.engines()) == 2


def test_totals_of_a_dead_engine_are_not_lost(lab, eventually):
    engine = lab.connect()
    list(engine.rows(lab.filter, [[["a"], ["bb"]]]))
    eventually(lambda: read_stats(lab.application)[0]["operators"])
    kill(lab.engines()[0])
    list(engine.rows(lab.filter, [[["c"]], [["fail"]]]))
    eventually(lambda: len(stats := read_stats(lab.application)) == 2 and stats[1]["operators"])
    dead, alive = read_stats(lab.application)
    assert (dead["alive"], dead["state"], dead["run"]) == (False, "ready", 1)
    assert (alive["alive"], alive["state"], alive["run"]) == (True, "ready", 2)
    total = total_operators([dead, alive])["op"]
    assert (total["rows"], total["batches"], total["errors"], total["asked"]) == (4, 3, 1, [4])
    assert total["templates"] == ["Is {0} even?"] and total["first"] < total["last"]


def test_a_stream_that_comes_too_late_is_for_another_engine(tmp_path):
    """An engine that has decided to end, and is still there."""
    lifetime = Lifetime([], 100, 100)
    directory = RuntimeDirectory(Path(tempfile.mkdtemp(prefix="qs", dir="/tmp")))
    server = EngineServer(directory.location(1), None, lifetime, Stats(tmp_path / "stats.json", {}))
    state = State("ready", 1, "application", EngineConfig("fake://ok"), ())
    client = Connection(directory, state)
    client.register(ProcessId(1, "x"), 100)
    lifetime.end(End.IDLE)
    spec = OperatorSpec("op", "filter", (Predicate("{0}", (Argument(0),)),))
    stream = client.open(spec)
    stream.send(Codec(spec).encode([["a"]]))
    with pytest.raises(EngineGone, match="ending"):
        stream.receive()
    stream.close()
    with pytest.raises(EngineGone, match="ending"):
        client.register(ProcessId(1, "x"), 100)
    server.shutdown()
    directory.path.rmdir()


def test_an_engine_that_is_silent_for_long_is_killed_and_replaced(lab, caplog):
    engine = lab.connect(silence_timeout=2)
    batches = [[["a"]], [["freeze once"]], [["bb"], ["c"]]]
    with caplog.at_level(logging.WARNING, logger=watch.__name__):
        assert texts(engine.rows(lab.filter, batches)) == [[0], [0], [1, 0]]
    first, second = lab.engines()
    assert identify(first) is None and engine.stats()["pid"] == second
    assert f"engine process {first} answered nothing for 2 s and was killed" in caplog.text


def test_engines_that_keep_falling_silent_are_an_error_that_says_so(lab):
    answers = lab.connect(silence_timeout=2).rows(lab.filter, [[["a"]], [["freeze"]]])
    assert next(answers).codes.tolist() == [[0]]
    with pytest.raises(EngineCrashError, match=r"lost 3 times .* batch 2 .* answered nothing for 2 s and was killed"):
        next(answers)


def test_an_engine_that_takes_no_more_input_is_not_waited_for_forever(lab, eventually):
    """The messages of this stream are more than a socket holds, so the client hangs while it writes."""
    engine = lab.connect(silence_timeout=2)
    (first,) = lab.engines()
    big = [["x" * (20 << 20)]]
    answers = engine.rows(lab.filter, iter([[["a"]], big, big, [["bb"]]]))
    os.kill(first, signal.SIGSTOP)
    assert texts(answers) == [[0], [1], [1], [1]]
    assert identify(first) is None and len(lab.engines()) == 2


def test_a_long_answer_is_no_silence(lab):
    engine = lab.connect(silence_timeout=2)
    assert texts(engine.rows(lab.filter, [[["wait 4"]], [["bb"]]])) == [[1], [1]]
    assert len(lab.engines()) == 1


def test_a_stalled_connection_is_given_up_and_its_engine_kept(lab, monkeypatch):
    """Calls on the old connection find no answer, those on a new one do."""
    engine = lab.connect(silence_timeout=2)
    stalled, stats = engine.connection(), Connection.stats

    def stats_of(connection, timeout=None):
        if connection is stalled:
            raise EngineGone("deadline exceeded")
        return stats(connection, timeout)

    monkeypatch.setattr(Connection, "stats", stats_of)
    answers = engine.rows(lab.filter, [[["wait 5"]], [["bb"]]])
    assert texts(answers) == [[1], [1]]
    assert len(lab.engines()) == 1 and engine.connection() is not stalled


def test_a_silent_engine_is_mentioned(lab, monkeypatch, caplog, eventually):
    monkeypatch.setattr(watch, "MENTION", 0.2)
    monkeypatch.setattr(connection, "ACTION_TIMEOUT", 0.3)
    engine = lab.connect()
    (pid,) = lab.engines()
    thread = threading.Thread(target=lambda: results.extend(engine.rows(lab.filter, [[["freeze"]], [["bb"]]])))
    results = []
    with caplog.at_level(logging.WARNING, logger=watch.__name__):
        thread.start()
        eventually(lambda: f"engine process {pid} does not answer" in caplog.text)
    assert "engine-1.log" in caplog.text and "'op'" in caplog.text
    os.kill(pid, signal.SIGCONT)
    thread.join(60)
    assert texts(results) == [[1], [1]]
