"""What everything but the model costs: Spark, Arrow and Arrow Flight around an engine without weights, and whose memory grows.

    python benchmarks/spark/overhead.py --rows 1000000
    python benchmarks/spark/overhead.py --rows 2000000 --mixed      # some documents of 1 MB, some empty

One AI filter over documents of 1 KB in Parquet, answered by `scripted://hash` (a hash of prompt and text), in four ways:
Spark alone (the same rows through a MapInArrow that does nothing), the engine's session alone (in this process, from
Parquet, no Spark), the session in its process behind the client (one stream), and Spark with quail-spark. The
resident memory of the JVM, all Python workers and the engine is sampled twice a second while the last one runs.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import quail_spark
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator
from quail_spark.engine.stats import read_stats
from quail_spark.optimizer.plan import TRUE, Argument, OperatorSpec, Predicate

MODEL = "scripted://hash?rate=0.5&seed=1&calls=false"
QUESTION = "{0} asks for a refund"
CORES = 2
BATCH = 256  # rows, as spark.quail.batch.rows
FILE_ROWS = 50_000
KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
SAMPLE = 0.5  # seconds


def write_rows(path: Path, rows: int, mixed: bool) -> None:
    """Distinct documents of 1 KB; mixed: every tenth is empty and every 2,000th has 1 MB."""
    random = np.random.default_rng(1)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        ids = range(start, min(start + FILE_ROWS, rows))
        words = random.integers(0, 1 << 62, (len(ids), 4))
        texts = [_document(i, row, mixed) for i, row in zip(ids, words.tolist(), strict=True)]
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": texts})
        pq.write_table(table, path / f"{number:05}.parquet", row_group_size=5_000)


def _document(number: int, words: list[int], mixed: bool) -> str:
    if mixed and number % 10 == 9:
        return ""
    size = MEGABYTE if mixed and number % 2_000 == 0 else KILOBYTE
    line = f"{number} " + " ".join(f"{word:x}" for word in words) + " "
    return (line * (size // len(line) + 1))[:size]


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The texts as record batches."""
    for file in sorted(path.glob("*.parquet")):
        yield from pq.ParquetFile(file).iter_batches(BATCH, columns=["text"])


def timed(action: Callable[[], int]) -> tuple[float, int]:
    """Seconds and result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def session_alone(config: EngineConfig, spec: OperatorSpec, path: Path) -> int:
    """Rows that pass, in this process."""
    session = ScriptedEvaluator(config).open(spec)
    texts = ([[text] for text in batch.column(0).to_pylist()] for batch in batches(path))
    return sum(int((session.rows(part).codes == TRUE).sum()) for part in texts)


def behind_client(config: EngineConfig, spec: OperatorSpec, path: Path) -> int:
    """Rows that pass, in an engine process of this script's own."""
    client = connect(config, f"overhead-{os.getpid()}")
    try:
        return sum(int((answers.codes == TRUE).sum()) for answers in client.rows(spec, batches(path)))
    finally:
        client.stop()


def make_session(answer_memory: int) -> SparkSession:
    """Two cores, and an engine for them."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
    }
    spark = SparkSession.builder.master(f"local[{CORES}]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return quail_spark.enable(spark, model=MODEL, device="cpu", progress=False, engine_answer_memory=answer_memory)


class Memory:
    """Resident MiB by role, sampled until `stop`."""

    def __init__(self, application: str):
        self.samples: dict[str, list[float]] = defaultdict(list)
        self._application, self._stopped = application, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, list[int]]:
        """The largest sample of each quarter of the time."""
        self._stopped.set()
        self._thread.join()
        quarters = {name: np.array_split(values, 4) for name, values in self.samples.items()}
        return {name: [round(max(part, default=0)) for part in parts] for name, parts in quarters.items()}

    def _run(self) -> None:
        while not self._stopped.wait(SAMPLE):
            engines = {engine["pid"] for engine in read_stats(self._application) if engine["alive"]}
            totals = {"JVM": 0.0, "workers": 0.0, "engine": 0.0}
            for pid, role in _roles(engines):
                totals[role] += _resident(pid)
            for role, total in totals.items():
                self.samples[role].append(total)


def _roles(engines: set[int]) -> Iterator[tuple[int, str]]:
    """Processes below this one, and the engines, which are sessions of their own."""
    parents = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for pid in parents:
        if pid in engines:
            yield pid, "engine"
        elif _is_below(pid, os.getpid(), parents):
            yield pid, "JVM" if parents[pid] == os.getpid() else "workers"


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 1:
        if pid == root:
            return True
    return False


def _resident(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
    except OSError:
        return 0.0


def main() -> None:
    """Measure, print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--mixed", action="store_true", help="every tenth document empty, every 2,000th of 1 MB")
    parser.add_argument("--answer-memory", type=int, default=100_000, help="answers that the engine remembers")
    options = parser.parse_args()
    spec = OperatorSpec("overhead", "filter", (Predicate(QUESTION, (Argument(0),)),))
    config = EngineConfig(MODEL, answer_memory=options.answer_memory)
    with tempfile.TemporaryDirectory() as home:
        path = Path(home)
        write_rows(path, options.rows, options.mixed)
        spark = make_session(options.answer_memory)
        rows = spark.read.parquet(home)
        rows.createOrReplaceTempView("rows")
        rows.limit(1000).createOrReplaceTempView("few")
        query = f"SELECT count(*) FROM rows WHERE AI.IF(PROMPT('{QUESTION}', text))"
        spark.sql(query.replace("FROM rows", "FROM few")).collect()
        seconds, passed = {}, {}

        def measure(name: str, action: Callable[[], int]) -> None:
            seconds[name], passed[name] = timed(action)
            print(f"{name:44} {seconds[name]:8.1f} s {options.rows / seconds[name]:12,.0f} rows/s", flush=True)

        measure("Spark and Arrow alone", lambda: rows.mapInArrow(lambda parts: parts, rows.schema).count())
        measure("the engine's session alone, in this process", lambda: session_alone(config, spec, path))
        measure("the engine behind its client, one stream", lambda: behind_client(config, spec, path))
        memory = Memory(spark.sparkContext.applicationId)
        measure("Spark with quail-spark", lambda: spark.sql(query).first()[0])
        resident = memory.stop()
        assert len({passed[name] for name in list(passed)[1:]}) == 1, passed
        spark.stop()
    print("resident MiB, largest of each quarter of the time:")
    for role, values in resident.items():
        print(f"    {role:10}" + "".join(f"{value:8,}" for value in values))
    print(json.dumps({"rows": options.rows, "mixed": options.mixed, "seconds": seconds, "resident_mib": resident}))


if __name__ == "__main__":
    main()
