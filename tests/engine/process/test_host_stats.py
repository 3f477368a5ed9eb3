"""Totals of an engine."""

import json
import threading
import time

import numpy as np

from quail_spark.engine.evaluator import Answers, Counts
from quail_spark.engine.stats import Stats, total_operators
from quail_spark.optimizer.plan import OperatorSpec, Predicate


def spec(*templates, name="op", kind="filter"):
    return OperatorSpec(name, kind, tuple(Predicate(template, ()) for template in templates))


def answers(errors=0, **counts):
    return Answers(np.zeros((1, 1)), np.zeros((1, 1)), [(0, 0, "bad")] * errors, Counts(**counts))


def test_sums(tmp_path):
    stats = Stats(tmp_path / "stats.json", {"run": 3})
    stats.add(spec("a", "b"), answers(rows=5, fresh_tokens=7, seconds=0.25, asked=[5, 2], passed=[2, 1]))
    stats.add(spec("a", "b"), answers(rows=np.int64(1), errors=2, seconds=0.5, asked=[], passed=[1]))
    stats.add(spec("c", name="other"), answers(rows=9))
    stats.write()
    written = json.loads((tmp_path / "stats.json").read_text())
    assert written["schema"] == 1 and written["run"] == 3
    op = written["operators"]["op"]
    assert (op["rows"], op["fresh_tokens"], op["seconds"], op["errors"], op["batches"]) == (6, 7, 0.75, 2, 2)
    assert op["asked"] == [5, 2] and op["passed"] == [3, 1] and op["templates"] == ["a", "b"]
    assert written["operators"]["other"]["rows"] == 9
    assert set(vars(Counts())) <= set(op)
    assert oct((tmp_path / "stats.json").stat().st_mode)[-2:] == "00"


def test_operators_of_one_name_that_ask_different_things_are_apart(tmp_path):
    stats = Stats(tmp_path / "stats.json", {})
    for template in ("a", "b", "a", "c", "b"):
        stats.add(spec(template), answers(rows=1))
    assert {name: one["rows"] for name, one in stats.snapshot()["operators"].items()} == {
        "op": 2,
        "op (2)": 2,
        "op (3)": 1,
    }


def test_busy_time_is_wall_time(tmp_path):
    stats = Stats(tmp_path / "stats.json", {})
    started = time.monotonic()
    with stats.busy(), stats.busy():
        time.sleep(0.05)
    assert 0.05 <= stats.snapshot()["busy_seconds"] <= time.monotonic() - started  # not the sum


def test_a_file_is_written_only_after_a_change(tmp_path):
    path = tmp_path / "stats.json"
    stats = Stats(path, {"streams": 0})
    stats.write()
    path.unlink()
    stats.update(streams=0)
    stats.write()
    assert not path.exists()
    stats.update(streams=1)
    stats.write()
    assert json.loads(path.read_text())["streams"] == 1


def test_a_file_that_cannot_be_written_is_no_error(tmp_path):
    Stats(tmp_path / "no such directory" / "stats.json", {}).write()


def test_threads(tmp_path):
    stats = Stats(tmp_path / "stats.json", {})

    def work():
        for _ in range(200):
            stats.add(spec("a"), answers(rows=1, asked=[1]))
            stats.write()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats.update(state="ended")
    stats.write()
    assert json.loads((tmp_path / "stats.json").read_text())["operators"]["op"]["asked"] == [800]


def test_totals_over_engines(tmp_path):
    engines = []
    for rows in (1, 2):
        stats = Stats(tmp_path / "stats.json", {})
        stats.add(spec("a"), answers(rows=rows, asked=[rows] * rows))
        if rows == 2:
            stats.add(spec("b", name="other"), answers(rows=5))
        engines.append(stats.snapshot())
    total = total_operators(engines)
    assert total["op"]["rows"] == 3 and total["op"]["asked"] == [3, 2] and total["op"]["batches"] == 2
    assert total["other"]["rows"] == 5
    assert engines[0]["operators"]["op"]["rows"] == 1  # inputs are left alone
