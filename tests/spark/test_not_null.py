"""Columns that can't be NULL pass through outer AI joins, also where nothing of the other side is selected."""

import pytest

from .oracle import answer

SAME = "{0} is {1}"


@pytest.mark.parametrize("kind", ["LEFT", "FULL"])
@pytest.mark.parametrize("key", ["", "a.id % 2 = b.id % 2 AND "], ids=["question", "equality"])
def test_outer_joins(kind, key, spark):
    spark.range(6).selectExpr("id", "CAST(id AS STRING) AS text").createOrReplaceTempView("a")
    spark.range(3, 9).selectExpr("id", "CAST(id AS STRING) AS text").createOrReplaceTempView("b")
    frame = spark.sql(f"SELECT a.id FROM a {kind} JOIN b ON {key}AI.IF(PROMPT('{SAME}', a.text, b.text))")
    pairs = [
        (i, j) for i in range(6) for j in range(3, 9) if (not key or i % 2 == j % 2) and answer(SAME, str(i), str(j))
    ]
    expected = [i for i, _ in pairs] + [i for i in range(6) if i not in {i for i, _ in pairs}]
    if kind == "FULL":
        expected += [None] * len(set(range(3, 9)) - {j for _, j in pairs})
    assert sorted(str(row.id) for row in frame.collect()) == sorted(map(str, expected))
