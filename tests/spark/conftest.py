"""One Spark session for all tests of the connector, with a scripted model in place of a real one."""

import os
import warnings

import pytest

# Tests that start JVMs of their own, minutes in all: not repeated on every version of Spark.
OWN_JVMS = [
    "test_cluster.py",
    "test_connect.py",
    "test_delta.py",
    "test_enrich_job.py",
    "test_faults.py",
    "test_gpus.py",
    "test_lifetime.py",
]
collect_ignore = OWN_JVMS if os.environ.get("QUAIL_SPARK_MATRIX") else []

MODEL = "scripted://hash?rate=0.5&seed=7"


@pytest.fixture(scope="session")
def bare_spark(tmp_path_factory):
    """A classic session without AI functions; use `spark` unless that is the point."""
    from pyspark.sql import SparkSession

    from quail_spark.java_home import use_java

    use_java()
    home = tmp_path_factory.mktemp("spark")
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("quail-spark tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def spark(bare_spark):
    """The session with AI-SQL on and every setting at the tests' values; settings a test changes are put back."""
    import quail_spark

    quail_spark.disable(bare_spark)
    quail_spark.enable(bare_spark, model=MODEL, progress="false", optimizer_strict=True)
    before = {name: value for name, value in bare_spark.conf.getAll.items() if name.startswith("spark.")}
    yield bare_spark
    after = {name: value for name, value in bare_spark.conf.getAll.items() if name.startswith("spark.")}
    for name in after.keys() - before.keys():
        bare_spark.conf.unset(name)
    for name, value in before.items():
        if after.get(name) != value:
            bare_spark.conf.set(name, value)
    bare_spark.catalog.clearCache()


@pytest.fixture
def unplanned(spark):
    """The session with the planner off: AI calls run as UDFs."""
    spark.conf.set("spark.quail.optimizer.enabled", "false")
    return spark
