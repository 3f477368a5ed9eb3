"""Tasks and the GPUs that Spark gives them, with GPUs that are not there (see gpu_job.py)."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyspark

import quail_spark
from quail_spark.engine.scripted import scripted_answer

from .gpu_job import ASK, ROWS

SCRIPT = Path(quail_spark.__file__).with_name("data") / "discover_gpus.sh"
EXPECTED = [i for i in range(ROWS) if scripted_answer(ASK, [f"row {i}"], rate=0.5, seed=4)]


def run(visible: str, master: str, **settings: object) -> dict:
    """The job's result; settings are below spark., `_` for a dot."""
    job = Path(__file__).with_name("gpu_job.py")
    given = [f"spark.{name.replace('_', '.')}={value}" for name, value in settings.items()]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": visible}
    command = [sys.executable, "-P", str(job), master, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    work = Path(pyspark.__file__).parent / "work"  # a local cluster's workers leave their logs there
    shutil.rmtree(work / result["application"], ignore_errors=True)
    with suppress(OSError):
        work.rmdir()
    assert result["rows"] == EXPECTED
    assert sum(engine["rows"] for engine in result["engines"]) == ROWS
    return result


def gpus(worker: int, task: float) -> dict:
    """Settings of a worker with one executor that has all of its GPUs."""
    return {
        "worker_resource_gpu_amount": worker,
        "worker_resource_gpu_discoveryScript": SCRIPT,
        "executor_resource_gpu_amount": worker,
        "task_resource_gpu_amount": task,
        "executor_memory": "512m",
    }


def test_an_executor_with_two_gpus_has_an_engine_on_each():
    result = run("5,7", "local-cluster[1,2,1024]", **gpus(worker=2, task=1))
    assert {tuple(given) for given in result["addresses"]} == {("5",), ("7",)}
    assert sorted((engine["device"], engine["run"]) for engine in result["engines"]) == [("cuda:5", 1), ("cuda:7", 1)]
    assert all(engine["rows"] for engine in result["engines"])


def test_tasks_and_workers_that_were_given_one_gpu_share_its_engine():
    """Two workers whose discovery script tells both the same, and four tasks at a time."""
    result = run("5", "local-cluster[2,2,1024]", **gpus(worker=1, task=0.5))
    assert {tuple(given) for given in result["addresses"]} == {("5",)}
    assert [(engine["device"], engine["run"]) for engine in result["engines"]] == [("cuda:5", 1)]


def test_only_the_stages_of_ai_operators_are_given_gpus():
    """Spark is asked for no GPU by default; one executor has two."""
    settings = gpus(worker=2, task=0)
    del settings["task_resource_gpu_amount"]
    result = run("5,7", "local-cluster[1,2,1024]", **settings, quail_resources_gpuPerTask=1)
    assert result["addresses"] == [[]] * 8
    rows = {engine["device"]: engine["rows"] for engine in result["engines"]}
    assert set(rows) == {"cuda:5", "cuda:7"} and all(rows.values())


def test_dynamic_allocation_starts_executors_with_gpus_for_those_stages():
    """Executors of the other stages have none; a worker of two cores runs either."""
    settings = gpus(worker=2, task=0)
    for name in ("executor_resource_gpu_amount", "task_resource_gpu_amount"):
        del settings[name]
    settings |= {
        "executor_cores": 1,
        "dynamicAllocation_enabled": "true",
        "dynamicAllocation_executorIdleTimeout": "5s",
    }
    settings |= {"dynamicAllocation_shuffleTracking_enabled": "true", "dynamicAllocation_minExecutors": 0}
    wanted = {"quail_resources_gpuPerTask": 1, "quail_resources_gpuPerExecutor": 1}
    result = run("5,7", "local-cluster[1,2,1024]", **settings, **wanted)
    assert result["addresses"] == [[]] * 8
    assert {engine["device"] for engine in result["engines"]} <= {"cuda:5", "cuda:7"}


def test_partitions_take_turns_where_spark_manages_no_gpus():
    result = run("5,7,GPU-8f", "local[4]")
    assert result["addresses"] == [[]] * 8
    rows = {engine["device"]: engine["rows"] for engine in result["engines"]}
    assert rows == {"cuda:5": 30, "cuda:7": 30, "cuda:GPU-8f": 20}  # partitions 0 3 6, 1 4 7, 2 5 of ten rows each
