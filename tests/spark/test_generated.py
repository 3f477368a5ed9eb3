"""Generated queries: planned = not planned (where Spark takes them) = plain Python, and no needless question is asked.

$QUAIL_SPARK_GENERATED is the number of queries, $QUAIL_SPARK_SEED the first seed. Several queries run in one Spark job.
A failure names the seeds; `QUAIL_SPARK_GENERATED=1 QUAIL_SPARK_SEED=<seed>` runs one alone.
"""

import os
import random
from collections import Counter
from itertools import groupby

import pyarrow as pa
import pytest

from quail_spark.catalyst import planned

from .engine_calls import calls
from .oracle import answer
from .query_maker import Maker, make_tables
from .questions import Questions
from .sql_model import World

QUERIES = int(os.environ.get("QUAIL_SPARK_GENERATED", "64"))
FIRST = int(os.environ.get("QUAIL_SPARK_SEED", "0"))
TOGETHER = 8  # queries over the same tables, in one job
JOBS = [list(seeds) for _, seeds in groupby(range(FIRST, FIRST + QUERIES), key=lambda seed: seed // TOGETHER)]
REFUSED = "spark.quail.optimizer.enabled is false"
ORDERED: Counter = Counter()  # how often joins ran in another order, or as written
SCHEMA = pa.schema([("id", pa.int32()), ("text", pa.string()), ("grp", pa.string()), ("n", pa.int32())])


def plain(value) -> str | None:
    """As `CAST(value AS STRING)`."""
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def counted(rows) -> Counter:
    return Counter(tuple(plain(value) for value in row) for row in rows)


def together(queries: dict) -> str:
    """One text for several queries: (seed, columns as strings)."""
    parts = []
    for seed, query in queries.items():
        columns = ", ".join(f"CAST(c{i} AS STRING)" for i in range(query.width))
        parts.append(f"SELECT {seed} AS seed, array({columns}) AS columns FROM ({query.sql()})")
    return " UNION ALL ".join(parts)


def run(spark, queries: dict) -> dict[int, Counter]:
    found: dict[int, Counter] = {seed: Counter() for seed in queries}
    for seed, columns in spark.sql(together(queries)).collect():
        found[seed][tuple(columns)] += 1
    return found


def settings(seed: int) -> dict[str, str]:
    """Small and large blocks, messages and batches, either way to bring partners to anchors, adaptive plans or not."""
    draw = random.Random(f"settings {seed}")
    choices = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": ["1", "7", "10000"],
        "spark.sql.adaptive.enabled": ["true", "true", "false"],
        "spark.quail.batch.rows": ["1", "256"],
        "spark.quail.batch.bytes": ["30", "4m"],
        "spark.quail.join.blockRows": ["1", "3", "1024"],
        "spark.quail.join.broadcastBytes": ["0", "64m"],
        "spark.sql.cbo.enabled": ["true", "false"],
        "spark.quail.prompt.layout": ["document_first", "literal", "auto", "auto"],
    }
    return {name: draw.choice(values) for name, values in choices.items()}


@pytest.mark.parametrize("seeds", JOBS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_generated(spark, seeds):
    job = seeds[0] // TOGETHER
    for name, value in settings(job).items():
        spark.conf.set(name, value)
    tables, known = make_tables(job), random.Random(f"sizes {job}").random() < 0.6
    for name, rows in tables.items():
        arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
        frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=SCHEMA)).repartition(2)
        if known:  # Spark knows the size of what it has cached
            frame = frame.cache()
            frame.count()
        frame.createOrReplaceTempView(name)
    tag = f"g{job}"
    queries = {seed: Maker(seed, f"{tag}-{seed}").query() for seed in seeds}
    world = World(tables, answer)
    expected = {seed: counted(query.rows(world)) for seed, query in queries.items()}
    with planned.recording() as runs:
        wrong = compare(run(spark, queries), expected, queries, "planned")
    ORDERED.update(note.split(":")[0] for run in runs for note in run.notes if note.startswith("order of questions"))
    asked = calls(spark, tag)
    possible = set().union(*(Questions(World(tables, answer)).of(query) for query in queries.values()))
    assert set(asked.values()) <= {1}, "a question was asked twice"
    assert set(asked) <= possible, f"needless questions: {set(asked) - possible}"
    spark.conf.set("spark.quail.optimizer.enabled", "false")
    wrong += compare(unplanned(spark, queries), expected, queries, "not planned")
    assert not wrong, "\n".join(wrong)


def test_joins_were_reordered():
    """Runs last: enough of the queries had joins that statistics put into another order."""
    if QUERIES >= 64:
        assert ORDERED["order of questions"] >= QUERIES // 32, ORDERED


def unplanned(spark, queries: dict) -> dict[int, Counter]:
    """The results of the queries that Spark takes without the planner."""
    from pyspark.errors import IllegalArgumentException

    taken = {}
    for seed, query in queries.items():
        try:
            spark.sql(query.sql())._jdf.queryExecution().optimizedPlan()
            taken[seed] = query
        except IllegalArgumentException as error:
            assert REFUSED in str(error), f"seed {seed}: {error}"
    return run(spark, taken) if taken else {}


def compare(found: dict, expected: dict, queries: dict, how: str) -> list[str]:
    return [
        f"seed {seed}, {how}: {queries[seed].sql()}\n  missing {expected[seed] - got}\n  too many {got - expected[seed]}"
        for seed, got in found.items()
        if got != expected[seed]
    ]
