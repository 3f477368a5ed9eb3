"""Executors in processes of their own, also killed: the same rows as plain Python gives, one engine, errors with their cause."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from quail_spark.engine.scripted import scripted_answer

from .cluster_job import NEW, ODD, POISON, RATE, ROWS, SEED
from .spark_submit import environment

LOCAL_CLUSTER = ("quiet", "executor_killed", "shuffle_lost", "failure")
STANDALONE = ("quiet", "executor_killed", "speculation")
HOSTS = ("127.0.0.1", "127.0.0.2")
ATTEMPTS = 4  # spark.task.maxFailures


def passing(*templates: str) -> list[int]:
    """Ids of the rows that pass these questions."""
    texts = [f"message number {i}" for i in range(ROWS)]
    return [i for i, t in enumerate(texts) if all(scripted_answer(q, [t], rate=RATE, seed=SEED) for q in templates)]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory) -> Path:
    """The rows in eight files."""
    path = tmp_path_factory.mktemp("cluster")
    for part in range(8):
        rows = range(part, ROWS, 8)
        table = pa.table({"id": pa.array(rows, pa.int64()), "text": [f"message number {i}" for i in rows]})
        pq.write_table(table, path / f"part-{part}.parquet")
    return path


def run(master: str, parquet: Path, checks: tuple[str, ...], cwd: Path) -> dict:
    """What the checks found on this master."""
    job = Path(__file__).with_name("cluster_job.py")
    command = [sys.executable, "-P", str(job), master, str(parquet), *checks]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def local_cluster(parquet, tmp_path_factory) -> dict:
    return run("local-cluster[2,1,1024]", parquet, LOCAL_CLUSTER, tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def standalone(parquet, tmp_path_factory) -> Iterator[dict]:
    """The same on a master and two workers of one core each, which pass for two hosts (Spark copies slow tasks to another)."""
    home = tmp_path_factory.mktemp("standalone")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    processes = [daemon(home, "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    try:
        wait_for(port, processes[0])
        options = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        for host in HOSTS:
            where = ("--host", host, "--work-dir", str(home / host))
            processes.append(daemon(home, "worker.Worker", *options, *where, master, SPARK_LOCAL_IP=host))
        yield run(master, parquet, STANDALONE, home)
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(120)


def daemon(home: Path, name: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """A Spark daemon; its log is in `home`."""
    spark = Path(pyspark.__file__).parent
    settings = {"SPARK_HOME": str(spark), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "512m"}
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with open(home / f"{name}.log", "ab") as log:
        return subprocess.Popen(command, cwd=home, env=environment() | settings | variables, stdout=log, stderr=log)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(port: int, process: subprocess.Popen) -> None:
    """Until the master listens."""
    for _ in range(600):
        assert process.poll() is None, "the master has ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the master does not listen")


@pytest.fixture(params=["local_cluster", "standalone"])
def cluster(request) -> dict:
    return request.getfixturevalue(request.param)


def found(cluster: dict, check: str) -> dict:
    assert isinstance(cluster[check], dict), cluster[check]
    return cluster[check]


def test_same_rows_and_one_engine_for_the_machine(cluster):
    quiet = found(cluster, "quiet")
    assert quiet == {"ids": passing(NEW, ODD), "executors": 2, "engines": 1}


def test_an_executor_killed(cluster):
    result = found(cluster, "executor_killed")
    assert result["killed"] and result["ids"] == passing("{0} and one lost")


def test_a_shuffle_lost(local_cluster):
    result = found(local_cluster, "shuffle_lost")
    assert result["killed"] and result["retried"] >= 1
    assert result["ids"] == passing("{0} before the shuffle", "{0} after the shuffle")


def test_a_task_overtaken_by_its_copy(standalone):
    result = found(standalone, "speculation")
    assert result["overtaken"] and result["attempts"] == 2
    assert result["ids"] == passing("{0} twice")


def test_retries_are_bounded_and_the_cause_is_told(local_cluster):
    result = found(local_cluster, "failure")
    assert result["attempts"] == ATTEMPTS
    for words in ("RowError", POISON, "spark.quail.onError is fail"):
        assert words in result["message"], result["message"]
