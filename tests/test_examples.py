"""The demo runs from end to end, with a model without weights in place of the real one."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from quail_spark.java_home import use_java

EXAMPLES = Path(__file__).parent.parent / "examples"
RESULTS = {
    "transfer_fees": ["id", "intent", "text"],
    "complaints": ["company_response", "complaints", "about_loans"],
    "topics": ["description", "queries", "example"],
    "might_buy": ["customer_id", "product_id"],
}


def test_demo_writes_its_tables_and_says_how_good_and_how_dear(tmp_path):
    use_java()
    environment = os.environ | {"QUAIL_SPARK_MODEL": "scripted://hash?rate=0.5&seed=3"}
    command = [sys.executable, "-P", EXAMPLES / "demo.py", "--out", tmp_path / "out"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for name, columns in RESULTS.items():
        assert pq.read_table(tmp_path / "out" / name).column_names == columns, name
    assert result.stdout.count("Right in ") == 4
    for words in ("AI filter", "AI join", "fresh", "reused", "of 120 pairs"):
        assert words in result.stdout, words
    assert "ERROR" not in result.stderr and "WARN " not in result.stderr


def test_sample_is_small_and_attributed():
    data = EXAMPLES / "data"
    tables = list(data.glob("*.parquet"))
    assert sum(table.stat().st_size for table in tables) < 1_000_000
    text = (data / "README.md").read_text()
    for table in tables:
        rows = pq.read_metadata(table).num_rows
        assert f"| `{table.stem}` | {rows} | {', '.join(pq.read_schema(table).names)} |" in text
