"""A Python worker or the engine killed in the middle of a job: the job ends with the right rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quail_spark.engine.scripted import scripted_answer

from .fault_job import ROWS

TEXTS = [f"message number {i}" for i in range(ROWS)]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults")
    for part in range(2):
        rows = range(part, ROWS, 2)
        table = pa.table({"id": pa.array(rows, pa.int64()), "text": [TEXTS[i] for i in rows]})
        pq.write_table(table, path / f"part-{part}.parquet")
    return path


@pytest.mark.parametrize("victim", ["nothing", "worker", "engine"])
def test_rows_are_right(victim, parquet):
    job = Path(__file__).with_name("fault_job.py")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-P", str(job), victim, str(parquet)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(result["killed"]) == (0 if victim == "nothing" else 1)
    asks = ("{0} is odd", "{0} is new")
    expected = [i for i, text in enumerate(TEXTS) if all(scripted_answer(q, [text], rate=0.6, seed=3) for q in asks)]
    assert result["rows"] == expected
