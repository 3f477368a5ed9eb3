"""Jobs on executors of their own, some of them disturbed: run as a script by test_cluster.py.

    python -m tests.spark.cluster_job MASTER PARQUET CHECK…
prints JSON, last: by check what it found, or the text of what it raised.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROWS = 320
RATE, SEED = 0.6, 3
MODEL = f"scripted://hash?rate={RATE}&seed={SEED}&delay_ms=100"
NEW, ODD = "{0} is new", "{0} is odd"
POISON = "message number 77"
PARTS = 13  # of the shuffle; no other stage has as many tasks
GROUP = "shuffle"
SLOW = 120  # seconds that a task sleeps which another is to overtake


class Job:
    """One session, its rows and its engine."""

    def __init__(self, master: str, path: str):
        from pyspark.sql import SparkSession

        import quail_spark

        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "1g",
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.sql.adaptive.enabled": "false",  # a query is one job, whose stages can be counted
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.files.maxPartitionBytes": "1k",  # a task a file
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.interval": "200ms",
            "spark.speculation.minTaskRuntime": "6s",
            "spark.excludeOnFailure.enabled": "false",
        }
        self.spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
        self.context = self.spark.sparkContext
        self.context.setLogLevel("OFF")
        quail_spark.enable(self.spark, model=MODEL, progress="false", batch_rows=10)
        self.spark.read.parquet(path).createOrReplaceTempView("rows")

    def ids(self, query: str) -> list[int]:
        """Sorted ids that a query gives."""
        return sorted(row.id for row in self.spark.sql(query).collect())

    def engines(self) -> list[dict]:
        """Totals of this application's engines on this machine."""
        from quail_spark.engine.stats import read_stats

        return read_stats(self.context.applicationId)

    def answered(self, tag: str) -> int:
        """Rows that operators have answered whose questions contain `tag`."""
        operators = [operator for engine in self.engines() for operator in engine["operators"].values()]
        return sum(o["rows"] for o in operators if any(tag in template for template in o["templates"]))

    def executors(self) -> list[int]:
        """Process ids of this application's executors."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_executor(pid)]

    def _is_executor(self, pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        application = self.context.applicationId.encode()
        return application in command and any(part.endswith(b"ExecutorBackend") for part in command)

    def kill_executor(self, when: Callable[[], bool]) -> threading.Thread:
        """Once `when`, kill -9 one executor."""

        def wait_and_kill():
            while not when():
                time.sleep(0.02)
            self.killed = self.executors()[0]
            os.kill(self.killed, signal.SIGKILL)

        self.killed = None
        thread = threading.Thread(target=wait_and_kill, daemon=True)
        thread.start()
        return thread

    def stages(self) -> list:
        """What the tracker knows of this job group's stages."""
        tracker = self.context.statusTracker()
        numbers = [s for number in tracker.getJobIdsForGroup(GROUP) for s in tracker.getJobInfo(number).stageIds]
        return [info for info in map(tracker.getStageInfo, numbers) if info]


def check_quiet(job: Job) -> dict:
    """The rows, the executors, and how many engines answered them. Tasks of an aggregate hold the plan below it."""
    asked = f"AI.IF(PROMPT('{NEW}', text)) AND AI.IF(PROMPT('{ODD}', text))"
    ids = job.ids(f"SELECT id FROM rows WHERE {asked} GROUP BY id")
    alive = [engine for engine in job.engines() if engine["alive"]]
    return {"ids": ids, "executors": len(job.executors()), "engines": len(alive)}


def check_executor_killed(job: Job) -> dict:
    """An executor is killed while it asks."""
    killer = job.kill_executor(lambda: job.answered("one lost") > 0)
    ids = job.ids("SELECT id FROM rows WHERE AI.IF(PROMPT('{0} and one lost', text))")
    killer.join(60)
    return {"ids": ids, "killed": job.killed}


def check_shuffle_lost(job: Job) -> dict:
    """An executor is killed with what it has shuffled, while the next stage reads it."""
    job.context.setJobGroup(GROUP, "a query with a shuffle")
    killer = job.kill_executor(lambda: any(i.numTasks == PARTS and i.numCompletedTasks > 1 for i in job.stages()))
    ids = job.ids(f"""
        SELECT id FROM
          (SELECT /*+ REPARTITION({PARTS}, id) */ * FROM rows WHERE AI.IF(PROMPT('{{0}} before the shuffle', text)))
        WHERE AI.IF(PROMPT('{{0}} after the shuffle', text))""")
    killer.join(60)
    return {"ids": ids, "killed": job.killed, "retried": max(info.currentAttemptId for info in job.stages())}


def check_speculation(job: Job) -> dict:
    """A task that hangs is overtaken by a copy of it; what both ask is written once. Needs executors on two hosts."""
    home = Path(tempfile.mkdtemp())

    def slow(batches):
        from pyspark import TaskContext

        task = TaskContext.get()
        (home / f"{task.partitionId()}-{task.attemptNumber()}").touch()
        for batch in batches:
            if task.partitionId() == 0 and task.attemptNumber() == 0:
                time.sleep(SLOW)
            yield batch

    frame = job.spark.table("rows")
    frame.mapInPandas(slow, frame.schema).createOrReplaceTempView("slow_rows")
    started = time.monotonic()
    out = str(home / "out")
    job.spark.sql("SELECT id FROM slow_rows WHERE AI.IF(PROMPT('{0} twice', text))").write.parquet(out)
    seconds = time.monotonic() - started
    ids = sorted(row.id for row in job.spark.read.parquet(out).collect())
    return {"ids": ids, "attempts": len(list(home.glob("0-*"))), "overtaken": seconds < SLOW}


def check_failure(job: Job) -> dict:
    """A row that can't be answered: tried as often as Spark tries a task, and the message names it."""
    home = Path(tempfile.mkdtemp())

    def noted(batches):
        from pyspark import TaskContext

        task = TaskContext.get()
        (home / f"{task.partitionId()}-{task.attemptNumber()}").touch()
        yield from batches

    job.spark.conf.set("spark.quail.model", f"{MODEL}&fail_containing={POISON}")
    frame = job.spark.table("rows")
    frame.mapInPandas(noted, frame.schema).createOrReplaceTempView("noted_rows")
    try:
        job.ids(f"SELECT id FROM noted_rows WHERE AI.IF(PROMPT('{NEW}', text))")
        message = ""
    except Exception as error:
        message = str(error)
    finally:
        job.spark.conf.set("spark.quail.model", MODEL)
    attempts = [int(path.name.split("-")[1]) for path in home.iterdir()]
    return {"message": message, "attempts": 1 + max(attempts)}


def main(master: str, path: str, *checks: str) -> None:
    """Run the checks in one session."""
    job, found = Job(master, path), {}
    for name in checks:
        try:
            found[name] = globals()[f"check_{name}"](job)
        except Exception:
            found[name] = traceback.format_exc()[-4000:]
    job.spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
