"""The `spark-submit` of the pyspark that runs the tests, and Delta Lake's packages for it."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from quail_spark.java_home import use_java

DELTA = "4.4.0"
DELTA_FOR = ("4.0", "4.1", "4.2")  # the Spark versions that this release of Delta Lake is built for
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",  # of tiny tables' logs; 50 otherwise
}
NOT_FETCHED = ("unresolved dependency", "UNRESOLVED DEPENDENCIES", "download failed")


def delta_package() -> str:
    """The Maven coordinates that suit this Spark. Skips the test where Delta Lake has none for it."""
    version = ".".join(pyspark.__version__.split(".")[:2])
    if version not in DELTA_FOR:
        pytest.skip(f"Delta Lake {DELTA} is built for Spark {', '.join(DELTA_FOR)}, and this is {pyspark.__version__}")
    return f"io.delta:delta-spark_{version}_2.13:{DELTA}"


def submit(
    script: Path | str, *arguments: str, cwd: Path, delta: bool = False, master: str = "local[2]", **settings: str
) -> subprocess.CompletedProcess:
    """Run `spark-submit script arguments` in `cwd` to its end. `settings`: more of Spark's, `a.b` written as `a_b`.

    Skips the test when Delta Lake is asked for and its jars can't be fetched.
    """
    conf = QUIET | {"spark.local.dir": str(cwd / "local"), "spark.sql.warehouse.dir": str(cwd / "warehouse")}
    options = ["--master", master]
    if delta:
        conf |= DELTA_SETTINGS
        options += ["--packages", delta_package()]
    conf |= {name.replace("_", "."): value for name, value in settings.items()}
    options += [part for item in conf.items() for part in ("--conf", "=".join(item))]
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), *options, str(script), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=500)
    if delta and done.returncode != 0 and any(words in done.stdout + done.stderr for words in NOT_FETCHED):
        pytest.skip(f"the jars of {delta_package()} can't be fetched from Maven Central, nor are they in Ivy's cache")
    return done


def environment() -> dict[str, str]:
    """This interpreter and an accepted Java for driver and workers; no other Spark, no other Python path."""
    use_java()
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH", "PYTHONHOME")}
    pythons = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return kept | pythons | {"SPARK_LOCAL_IP": "127.0.0.1"}
