"""Something breaks in the middle of a job: it ends with the rows of an undisturbed run, or with the first cause in words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quail_spark.engine.scripted import scripted_answer

from .fault_job import MODEL, ROWS

TEXTS = [f"message number {i}" for i in range(ROWS)]
FAULTS = Path(__file__).with_name("faults")


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults")
    for part in range(2):
        rows = range(part, ROWS, 2)
        table = pa.table({"id": pa.array(rows, pa.int64()), "text": [TEXTS[i] for i in rows]})
        pq.write_table(table, path / f"part-{part}.parquet")
    return path


def run(parquet, victim: str, model: str = MODEL, fault: str = "", marker: Path | None = None) -> dict:
    """What the job printed; `fault` is one of faults/sitecustomize.py, which leaves the file `marker`."""
    job = Path(__file__).with_name("fault_job.py")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    if fault:
        environment |= {"QUAIL_SPARK_TEST_FAULT": f"{fault}:{marker}", "PYTHONPATH": str(FAULTS)}
    command = [sys.executable, "-P", str(job), victim, str(parquet), model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def expected() -> list[int]:
    asks = ("{0} is odd", "{0} is new")
    return [i for i, text in enumerate(TEXTS) if all(scripted_answer(q, [text], rate=0.6, seed=3) for q in asks)]


@pytest.mark.parametrize("victim", ["nothing", "worker", "engine", "frozen"])
def test_rows_are_right(victim, parquet):
    """Killed with -9; `frozen`: an engine that answers no more, nor takes what is sent to it."""
    result = run(parquet, victim)
    assert len(result["killed"]) == (0 if victim == "nothing" else 1)
    assert result["rows"] == expected()
    assert result["engines"] == (2 if victim in ("engine", "frozen") else 1)


def test_a_disk_that_fills_up_under_the_engine(parquet, tmp_path):
    result = run(parquet, "nothing", fault="disk", marker=tmp_path / "full")
    assert (tmp_path / "full").exists()
    assert result["rows"] == expected()


def test_passes_that_find_no_memory_are_made_smaller(parquet, tmp_path, tiny_checkpoint):
    model = str(tiny_checkpoint)
    undisturbed = run(parquet, "nothing", model)
    result = run(parquet, "nothing", model, "memory", tmp_path / "refused")
    assert (tmp_path / "refused").exists() and result["engines"] == 1
    assert result["rows"] == undisturbed["rows"] and 0 < len(result["rows"]) < ROWS


def test_no_memory_at_all_is_what_the_user_reads(parquet, tmp_path, tiny_checkpoint):
    result = run(parquet, "nothing", str(tiny_checkpoint), "no_memory", tmp_path / "refused")
    assert result["rows"] == [] and (tmp_path / "refused").exists()
    for words in (
        "OutOfMemoryError: a pass of ",
        " new tokens finds no memory on cpu: Tried to allocate",
        "Engine log: ",
    ):
        assert words in result["error"], result["error"]
