"""A query on executors that are given GPUs which are not there: run as a script by test_gpus.py, in a Spark of its own.

    python -m tests.spark.gpu_job MASTER KEY=VALUE…
prints as JSON, last: the engines' devices with their numbers of rows, the rows that passed, and the addresses that tasks
were given. $CUDA_VISIBLE_DEVICES names the GPUs, our discovery script finds them, and the scripted model, which
looks at no device, answers in their name.
"""

import json
import os
import sys

ROWS, PARTITIONS = 80, 8
ASK = "{0} is even"
QUERY = (
    f"SELECT id FROM range(0, {ROWS}, 1, {PARTITIONS}) WHERE AI.IF(PROMPT('{ASK}', CONCAT('row ', CAST(id AS STRING))))"
)
MODEL = "scripted://hash?rate=0.5&seed=4&delay_ms=30"


def main(master: str, *settings: str) -> None:
    """Run the query and print what became of it."""
    from pyspark.sql import SparkSession

    import quail_spark
    from quail_spark.engine.stats import read_stats
    from quail_spark.java_home import use_java

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for setting in ("spark.ui.showConsoleProgress=false", "spark.driver.host=127.0.0.1", *settings):
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    quail_spark.enable(spark, model=MODEL, progress="false", batch_rows=5)
    rows = sorted(row.id for row in spark.sql(QUERY).collect())
    application = spark.sparkContext.applicationId
    engines = read_stats(application)  # now: they end with their executors
    given = spark.sparkContext.parallelize(range(PARTITIONS), PARTITIONS).map(addresses).collect()
    found = [
        {"device": e["device"], "run": e["run"], "rows": sum(o["rows"] for o in e["operators"].values())}
        for e in engines
    ]
    spark.stop()
    print(json.dumps({"application": application, "engines": found, "rows": rows, "addresses": given}))


def addresses(_: int) -> list[str]:
    """What Spark gave to this task."""
    from pyspark import TaskContext

    gpu = TaskContext.get().resources().get("gpu")
    return list(gpu.addresses) if gpu else []


if __name__ == "__main__":
    main(*sys.argv[1:])
