"""Secrets in Spark's configuration and in the environment stay there: no plan, report, file or error of ours shows one."""

import io
import logging
import re
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import PythonException

import quail_spark
from quail_spark.engines import OUTSIDE_SQL
from quail_spark.errors import ConfigError
from quail_spark.progress import ProgressLine

CANARY = "canary-7f3a"
SETTINGS = ("spark.hadoop.fs.s3a.secret.key", "spark.my.password", "spark.databricks.token")
QUERY = "SELECT id FROM range(6) WHERE AI.IF(PROMPT('{0} is secret s1', CAST(id AS STRING)))"


@pytest.fixture
def secretive(spark, monkeypatch):
    for name in SETTINGS:
        spark.conf.set(name, CANARY)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    spark.conf.set("spark.quail.batch.rows", "41")  # a message size of its own: tasks read settings anew
    return spark


def engine_files(spark) -> dict[Path, str]:
    """Their texts."""
    found = {}
    for directory in {Path(engine["log"]).parent for engine in quail_spark.report(spark).engines}:
        for path in directory.iterdir():
            with suppress(FileNotFoundError):  # renamed meanwhile
                if path.is_file():
                    found[path] = path.read_text(errors="replace")
    return found


def test_nothing_of_ours_shows_a_secret(secretive, caplog):
    line = io.StringIO()
    progress = ProgressLine(secretive.sparkContext.applicationId, line)
    with caplog.at_level(logging.DEBUG, logger="quail_spark"):
        df = secretive.sql(QUERY)
        df.collect()
    progress.stop()
    report = quail_spark.report(secretive)
    plan = df._jdf.queryExecution().toString()
    told = [str(report), str(report.as_dict()), quail_spark.metrics(secretive), quail_spark.explain(df), plan]
    told += [caplog.text, line.getvalue(), secretive.sparkContext.getLocalProperty(OUTSIDE_SQL)]
    files = engine_files(secretive)
    assert {".log", ".json"} <= {path.suffix for path in files} and "is secret s1" in str(report)
    told += files.values()
    assert not [text for text in told if CANARY in text]
    assert secretive.conf.get(SETTINGS[0]) == CANARY  # it was there to be told


def test_errors_do_not_show_a_secret(secretive):
    secretive.conf.set("spark.quail.model", "scripted://unknown")
    with pytest.raises(PythonException) as caught:
        secretive.sql(QUERY).collect()
    assert "accepted:" in str(caught.value) and CANARY not in str(caught.value)


@pytest.mark.parametrize("name", ["spark.quail.hubToken", "spark.quail.store.secretKey", "spark.quail.password"])
def test_a_setting_of_ours_that_sounds_secret_is_refused_by_its_name(spark, name):
    """There is none: credentials are for the environment. The value is not repeated."""
    spark.conf.set(name, CANARY)
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        quail_spark.enable(spark)
    assert CANARY not in str(caught.value)


def test_a_keyword_that_sounds_secret_is_refused_by_its_name(spark):
    with pytest.raises(ConfigError, match="hub_token") as caught:
        quail_spark.enable(spark, hub_token=CANARY)
    assert CANARY not in str(caught.value)
