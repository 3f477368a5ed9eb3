"""GPUs for the stages of AI operators, where Spark has no such thing or is asked for nonsense. Where it has: test_gpus.py."""

import pytest

from quail_spark.conf import QuailConf
from quail_spark.errors import ConfigError

QUERY = "SELECT id FROM VALUES (1, 'a'), (2, 'b') AS v(id, text) WHERE AI.IF(PROMPT('{0} is profiled', text))"


def test_a_local_master_has_no_profiles(spark):
    spark.conf.set("spark.quail.resources.gpuPerTask", "0.5")
    with pytest.raises(
        Exception, match=r"(?s)gpuPerTask is 0\.5 .*the master local\[2\]; accepted: 0 .*Spark says: \S+"
    ):
        spark.sql(QUERY).collect()
    spark.conf.set("spark.quail.resources.gpuPerTask", "0")
    spark.sql(QUERY).collect()


def test_gpus_of_executors_that_no_task_asks_for(spark):
    spark.conf.set("spark.quail.resources.gpuPerExecutor", "2")
    with pytest.raises(Exception, match=r"gpuPerExecutor is 2 and .*gpuPerTask is 0; accepted: both"):
        spark.sql(QUERY).collect()


@pytest.mark.parametrize("value", ["2", "-1", "one"])
def test_a_task_uses_one_gpu_at_most(value):
    with pytest.raises(ConfigError, match=rf"resources\.gpuPerTask is '{value}'; accepted: a number from 0 to 1"):
        QuailConf({"spark.quail.resources.gpuPerTask": value})
