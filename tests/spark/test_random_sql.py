"""Random SQL gives what it gives with a plain condition in the place of each AI call. See random_sql.py and plain_conditions.py.

$QUAIL_SPARK_RANDOM_SQL is the number of queries, $QUAIL_SPARK_SEED the first seed.
`QUAIL_SPARK_RANDOM_SQL=1 QUAIL_SPARK_SEED=<seed>` runs one alone.
"""

import os
import random
import re

import pytest

from .plain_conditions import SETTINGS, ai_sql, create_tables, drop_tables, plain_sql, result
from .random_sql import RandomSql

QUERIES = int(os.environ.get("QUAIL_SPARK_RANDOM_SQL", "16"))
# The same in every run, so that a change is not blamed for what Spark refuses by chance.
FIRST = int(os.environ.get("QUAIL_SPARK_SEED", "1"))
OURS = {
    "spark.quail.prompt.layout": ["document_first", "literal", "auto"],
    "spark.quail.batch.rows": ["1", "256"],
    "spark.quail.batch.bytes": ["30", "4m"],
    "spark.quail.join.blockRows": ["1", "3", "1024"],
    "spark.quail.join.broadcastBytes": ["0", "64m"],
    "spark.quail.optimizer.enabled": [*["true"] * 11, "false"],
    "spark.sql.cbo.enabled": ["true", "false"],
}
REFUSED = "spark.quail.optimizer.enabled is false; accepted: true"  # joins that are no inner ones
# Where cross joins are forbidden Spark refuses most subqueries that read outer values in an outer join's condition. Some pass
# because it moves a condition further down than it moves one with a Python UDF.
SUBQUERY, CROSSED = re.compile(r"LATERAL|EXISTS|IN \(|\(SELECT (count|max)"), "Detected implicit cartesian product"


@pytest.fixture(scope="module")
def stored(bare_spark):
    create_tables(bare_spark)
    for name, columns in {"t": "id, a, b, n, grp", "u": "id, a, n", "e": "id, a", "e2": "id, c, v"}.items():
        bare_spark.sql(f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR COLUMNS {columns}")
    yield bare_spark
    drop_tables(bare_spark)


def settings(seed: int) -> dict[str, str]:
    """What a query runs under."""
    draw = random.Random(f"settings {seed}")
    return {name: draw.choice(values) for name, values in OURS.items()} | draw.choice(SETTINGS)


def taken(spark, query: str):
    """What Spark gives for a query, or its refusal."""
    try:
        return result(spark.sql(query))
    except Exception as error:
        return error


def difference(spark, query: str) -> str | None:
    """How the rows or types of a query with AI calls differ from those with plain conditions; None: they don't, or Spark
    refuses both."""
    expected = taken(spark, plain_sql(query))
    if isinstance(expected, Exception):
        return None
    got = taken(spark, ai_sql(query))
    if isinstance(got, Exception):
        crossed = CROSSED in str(got) and SUBQUERY.search(query)
        return None if REFUSED in str(got) or crossed else str(got)
    (rows, types), (wanted, wanted_types) = got, expected
    if rows != wanted:
        return f"missing {wanted - rows}, too many {rows - wanted}"
    return None if types == wanted_types else f"types {types}, not {wanted_types}"


@pytest.mark.parametrize("seed", range(FIRST, FIRST + QUERIES))
def test_random_sql(stored, spark, seed):
    query, under = RandomSql(seed).statement(), settings(seed)
    print("seed", seed, under, query, sep="\n")
    for name, value in (under | {"spark.quail.model": "scripted://overlap"}).items():
        spark.conf.set(name, value)
    found = difference(spark, query)
    assert found is None, found
