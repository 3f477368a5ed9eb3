"""The example job under `spark-submit`: its rows, what it says, and its exit status."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .spark_submit import submit

JOB = Path(__file__).parents[2] / "examples" / "enrich_job.py"
MODEL = "scripted://contains?word=refund"
WORDS = ("a refund please", "thank you", "refunds are slow", "", None, "my refound")
ASKS = ("--prompt", "{0} asks for a refund", "--column", "body", "--model", MODEL)


def rows(seed: int) -> list[tuple[int, str | None]]:
    """Random ids and texts, NULL among them."""
    chosen = random.Random(seed)
    return [(i, chosen.choice(WORDS)) for i in range(60)]


def answer(text: str | None) -> bool | None:
    """The scripted model's."""
    return None if text is None else "refund" in text


def write_parquet(path: Path, table: list[tuple[int, str | None]]) -> Path:
    ids, texts = zip(*table, strict=True)
    path.mkdir()
    pq.write_table(
        pa.table({"id": pa.array(ids, pa.int64()), "body": pa.array(texts, pa.string())}), path / "a.parquet"
    )
    return path


def read(path: Path) -> list[dict]:
    return sorted(pq.read_table(path).to_pylist(), key=lambda row: row["id"])


def test_parquet(tmp_path):
    table = rows(1)
    source = write_parquet(tmp_path / "in", table)
    done = submit(JOB, "--input", str(source), "--output", "./out", *ASKS, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    expected = [{"id": i, "body": text, "answer": answer(text)} for i, text in table]
    assert read(tmp_path / "out") == expected
    told = [sum(row["answer"] is value for row in expected) for value in (True, False, None)]
    assert f"60 rows, {told[0]} TRUE, {told[1]} FALSE, {told[2]} NULL" in done.stdout
    assert "{0} asks for a refund" in done.stdout, "the report"


def test_delta_appends_what_is_true(tmp_path):
    table = rows(2)
    source = write_parquet(tmp_path / "in", table)
    delta_job = tmp_path / "twice.py"
    delta_job.write_text(TWICE.format(examples=str(JOB.parent), source=str(source)))
    done = submit(delta_job, *ASKS, cwd=tmp_path, delta=True)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = [i for i, text in table if answer(text)]
    assert done.stdout.strip().splitlines()[-1] == str(sorted(passed * 2))


TWICE = """
import sys
from pyspark.sql import SparkSession
sys.path.insert(0, {examples!r})
from enrich_job import main

def session():
    return SparkSession.builder.getOrCreate()

session().read.parquet({source!r}).write.format("delta").save("./delta")
for _ in range(2):
    status = main(["--format", "delta", "--input", "./delta", "--output", "./refunds", "--mode", "append",
                   "--only-true", *sys.argv[1:]])
    assert status == 0
print(sorted(row.id for row in session().read.format("delta").load("./refunds").collect()))
"""


def test_a_job_that_fails(tmp_path):
    source = write_parquet(tmp_path / "in", rows(3))
    asks = (*ASKS[:-1], MODEL + "&fail_containing=slow")
    done = submit(JOB, "--input", str(source), "--output", "./out", *asks, cwd=tmp_path)
    assert done.returncode == 1, done.stdout[-3000:]
    said = done.stdout + done.stderr  # spark-submit sends Python's errors to its standard output
    assert "enrich_job failed" in said and "refunds are slow" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--prompt", "{1} is new", "--column", "body"), "{1}"),
        (("--prompt", "{0} is new", "--column", "text"), "text"),
    ],
    ids=["placeholder", "column"],
)
def test_wrong_arguments(arguments, words, tmp_path):
    source = write_parquet(tmp_path / "in", rows(4))
    done = submit(JOB, "--input", str(source), "--output", "./out", "--model", MODEL, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout[-3000:]
    said = done.stdout + done.stderr
    assert words in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()
