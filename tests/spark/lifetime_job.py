"""An application that does as it is told: run as a script by test_lifetime.py, in a Spark of its own.

    python -m tests.spark.lifetime_job KEY=VALUE…       (settings of quail-spark)
For each line on stdin, the number of rows to ask about, it runs a query and prints a line of JSON; `0 N` starts a query
over N rows in the background and prints as soon as some are answered. Ends with its stdin.
"""

import json
import os
import sys
import threading
import time

ASK = "{0} is alive"
MODEL = "scripted://hash?rate=0.5&seed=6&delay_ms=100"


def main(*settings: str) -> None:
    """Obey."""
    from pyspark.sql import SparkSession

    import quail_spark
    from quail_spark.java_home import use_java

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in (("spark.ui.showConsoleProgress", "false"), ("spark.driver.host", "127.0.0.1")):
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    given = dict(setting.split("=", 1) for setting in settings)
    quail_spark.enable(spark, model=MODEL, progress="false", batch_rows=10, **given)
    for line in sys.stdin:
        first, *more = map(int, line.split())
        if first:
            rows = query(spark, first)
        else:
            rows = None
            threading.Thread(target=query, args=(spark, *more), daemon=True).start()
            while not answered(spark):
                time.sleep(0.05)
        print(json.dumps({"rows": rows, **facts(spark)}), flush=True)
    spark.stop()


def query(spark, rows: int) -> list[int]:
    """Ids of the rows that pass."""
    text = f"SELECT id FROM range(0, {rows}, 1, 2) WHERE AI.IF(PROMPT('{ASK}', CONCAT('row ', CAST(id AS STRING))))"
    return sorted(row.id for row in spark.sql(text).collect())


def answered(spark) -> int:
    """Rows that engines have answered."""
    from quail_spark.engine.stats import read_stats

    engines = read_stats(spark.sparkContext.applicationId)
    return sum(totals["rows"] for engine in engines for totals in engine["operators"].values())


def facts(spark) -> dict:
    """Process ids of the JVM and of the engines that were ever started here, and where these live."""
    from quail_spark.engine.runtime_dir import application_directory
    from quail_spark.engine.stats import read_stats

    application = spark.sparkContext.applicationId
    return {
        "application": application,
        "jvm": spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(),
        "engines": [engine["pid"] for engine in read_stats(application)],
        "directory": str(application_directory(application)),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
