"""The suite through Spark gives the rows of the local runner, and asks no more than the rows that meet call for.

$QUAIL_SPARK_SUITE=all runs all queries; by default a few that stand for the shapes.
"""

import os
import random

import pytest
from plain import Plain, small_tables
from sql_plan import read_sql
from suite_queries import read_queries
from through_spark import ThroughSpark, as_json, differing, line, local_session

QUERIES = read_queries()
SOME = ["IMDB-5", "IMDB-9", "BIO-4", "FEV-7", "FEV-10", "LEP-5", "R-1", "R-2", "R-6"]
SEED = random.randrange(1 << 30)


@pytest.fixture(scope="module")
def session():
    from pyspark import SparkContext

    started = SparkContext._active_spark_context is None
    spark = local_session()
    yield spark
    if started:
        spark.stop()


@pytest.fixture(scope="module")
def tables():
    print("seed", SEED)
    return small_tables(random.Random(SEED), rows=7)


@pytest.fixture(scope="module")
def suite(session, tables, tmp_path_factory):
    rate = random.Random(SEED).choice([0.3, 0.6, 0.9])
    return rate, ThroughSpark(session, tables, tmp_path_factory.mktemp("suite"), rate=rate, seed=SEED)


@pytest.mark.parametrize("name", QUERIES if os.environ.get("QUAIL_SPARK_SUITE") == "all" else SOME)
def test_rows_are_those_of_the_local_runner(suite, tables, name):
    rate, through = suite
    print("seed", SEED, "rate", rate)
    compared = through.compared(QUERIES[name])
    assert sorted(compared.spark.rows, key=repr) == sorted(compared.local.rows, key=repr)
    assert compared.differ == 0 and compared.spark.again == 0
    assert compared.operators >= 1 and not compared.udfs
    assert line(compared).startswith(name) and name in as_json([compared], {})
    asked = {(template, tuple(texts)) for template, texts, _ in through.calls()}
    read = read_sql(QUERIES[name].sql, tables)
    assert asked <= Plain(read.plan, read.tables, rate).prompts and len(asked) == compared.spark.asked


def test_rows_that_differ_are_counted():
    assert differing([("a",), ("b",), ("b",)], [("b",), ("c",)], in_order=False) == 3
    assert differing([("a",), ("b",)], [("b",), ("a",)], in_order=False) == 0
    assert differing([("a",), ("b",)], [("b",), ("a",), ("a",)], in_order=True) == 3
