"""A job that is disturbed half-way: run as a script by test_faults.py, in a Spark of its own that retries tasks.

    python -m tests.spark.fault_job nothing|worker|engine|frozen PARQUET [MODEL]
prints JSON, last: the sorted ids of the rows that passed, or what the job's error says; who was killed, or stopped; the
engines. Faults inside the engine are in faults/sitecustomize.py.
"""

import json
import os
import signal
import sys
import threading
import time

ROWS = 600
QUERY = "SELECT id FROM rows WHERE AI.IF(PROMPT('{0} is odd', text)) AND AI.IF(PROMPT('{0} is new', text))"
MODEL = "scripted://hash?rate=0.6&seed=3&delay_ms=150"


def main(victim: str, path: str, model: str = MODEL) -> None:
    """Start the query; once the engine has answered some rows, kill -9 (or stop) the victim; print the rows."""
    from pyspark.sql import SparkSession

    import quail_spark
    from quail_spark.engine.stats import read_stats
    from quail_spark.java_home import use_java

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    patience = {"engine_silence_timeout": "3s"} if victim == "frozen" else {}
    quail_spark.enable(spark, model=model, progress="false", batch_rows=20, device="cpu", **patience)
    spark.read.parquet(path).createOrReplaceTempView("rows")
    killed: list[int] = []
    killer = threading.Thread(target=kill_midway, args=(spark, victim, killed), daemon=True)
    killer.start()
    found: dict = {"rows": [], "error": ""}
    try:
        found["rows"] = sorted(row.id for row in spark.sql(QUERY).collect())
    except Exception as error:
        found["error"] = str(error)
    killer.join(timeout=60)
    engines = len(read_stats(spark.sparkContext.applicationId))
    spark.stop()
    print(json.dumps({"killed": killed, "engines": engines, **found}))


def kill_midway(spark, victim: str, killed: list[int]) -> None:
    """Wait until some rows are answered, then kill one process, or stop it for good."""
    from quail_spark.engine.stats import read_stats

    while victim != "nothing":
        time.sleep(0.05)
        for engine in read_stats(spark.sparkContext.applicationId):
            answered = sum(operator["rows"] for operator in engine["operators"].values())
            if 0 < answered < ROWS * 0.8:
                pid = a_worker() if victim == "worker" else engine["pid"]
                if pid is not None:
                    os.kill(pid, signal.SIGSTOP if victim == "frozen" else signal.SIGKILL)
                    killed.append(pid)
                    return


def a_worker() -> int | None:
    """The process id of a Python worker of this Spark: a child of a pyspark.daemon below this process."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    for pid, parent in parents.items():
        if _is_daemon(pid) and _is_daemon(parent) and os.getpid() in _ancestors(pid, parents):
            return pid
    return None


def _is_daemon(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            return b"pyspark.daemon" in command.read()
    except OSError:
        return False


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
