"""AI calls over Spark Connect: without the planner, with the same rows."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .connect_job import NEW, QUERIES, SAME, texts
from .oracle import answer
from .spark_submit import environment

REFUSED = ("left", "exists")


@pytest.fixture(scope="module")
def seed() -> int:
    return random.randrange(10**6)


@pytest.fixture(scope="module")
def got(seed, tmp_path_factory) -> dict:
    """What the queries gave."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    command = [sys.executable, "-P", str(Path(__file__).with_name("connect_job.py")), str(seed)]
    home = tmp_path_factory.mktemp("connect")
    done = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def expected(seed: int) -> dict[str, list[tuple]]:
    """The rows of every query, by plain Python."""
    rows = list(enumerate(texts(seed)))
    few = rows[:5]
    same = {(i, j) for i, t in rows for j, u in few if answer(SAME, t, u)}
    new = [answer(NEW, text) for _, text in rows]
    return {
        "frame": [(i,) for i, t in rows if new[i]],
        "filter": [(i,) for i, t in rows if i > 1 and new[i]],
        "named": [(i,) for i, t in rows if new[i]],
        "select": list(enumerate(new)),
        "grouped": list(Counter(new).items()),
        "join": list(same),
    }


@pytest.mark.parametrize("name", ["frame", *sorted(QUERIES.keys() - set(REFUSED))])
def test_rows(name, got, seed):
    assert not isinstance(got[name], str), got[name]
    assert Counter(map(tuple, got[name])) == Counter(expected(seed)[name]), f"seed {seed}"


@pytest.mark.parametrize("name", REFUSED)
def test_what_only_the_planner_can_run_is_refused_by_spark(name, got):
    assert "PYTHON_UDF_IN_ON_CLAUSE" in got[name]


def test_disabled(got):
    assert got["disabled"] == "AnalysisException"
    assert "quail-spark is not enabled" in got["frame of a disabled session"]
