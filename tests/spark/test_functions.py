"""AI calls as Columns: the same expression as in SQL, and errors at the call."""

import re

import pytest
from pyspark.sql import functions as F

from quail_spark.errors import ConfigError, PromptError
from quail_spark.functions import ai_if, prompt


def plan(frame):
    """The optimised plan as Catalyst prints it, without expression ids."""
    return re.sub(r"#\d+L?", "", frame._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        (lambda: ai_if(prompt("{0} is red", "name")), "AI.IF(PROMPT('{0} is red', name))"),
        (lambda: ai_if(prompt("{0} is red", F.col("t.name"))), "AI.IF(PROMPT('{0} is red', t.name))"),
        (
            lambda: ai_if(prompt("{t.name} is {`odd name`}, {t.name}")),
            "AI.IF(PROMPT('{t.name} is {`odd name`}, {t.name}'))",
        ),
        (
            lambda: ai_if(prompt("{0} is red", "id"), selectivity=0.1),
            "AI.IF(PROMPT('{0} is red', id), {'selectivity': 0.1})",
        ),
        (
            lambda: ai_if(prompt("{0}{1}", "id", "name"), anchor=[1, 0]),
            "AI.IF(PROMPT('{0}{1}', id, name), map('anchor', '1,0'))",
        ),
        (lambda: ai_if(prompt("is it {{red}}?")), "AI.IF(PROMPT('is it {{red}}?'))"),
        (lambda: ai_if(prompt(F.col("name"), "id")), "AI.IF(PROMPT(name, id))"),
    ],
)
def test_the_same_expression_as_in_sql(spark, column, sql):
    spark.conf.set("spark.quail.optimizer.enabled", "false")
    frame = spark.createDataFrame([(1, "a", "b")], "id int, name string, `odd name` string").alias("t")
    frame.createOrReplaceTempView("t")
    from_sql = spark.sql(f"SELECT {sql} AS a FROM t")
    assert plan(frame.select(column().alias("a"))) == plan(from_sql)
    assert "ai_if(" in plan(from_sql)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: prompt("{0} {1}", "a"), PromptError, "uses {1} but has 1 argument"),
        (lambda: prompt("{a} {0}", "b"), PromptError, "mixed"),
        (lambda: prompt("{a}", "b"), PromptError, "1 argument stands behind"),
        (lambda: prompt("{a b}"), PromptError, "placeholder {a b} in the template '{a b}' is neither"),
        (lambda: prompt("{"), PromptError, "lone '{'"),
        (lambda: prompt(7), PromptError, "7"),
        (lambda: ai_if("is it?"), PromptError, "ai_if() got 'is it?'"),
        (lambda: ai_if(prompt("x"), selectiviti=0.5), ConfigError, "accepted: selectivity, anchor"),
        (lambda: ai_if(prompt("x"), selectivity=2), ConfigError, "from 0 to 1"),
        (lambda: ai_if(prompt("x"), selectivity=None), ConfigError, "None"),
        (lambda: ai_if(prompt("x"), selectivity=True), ConfigError, "True"),
        (lambda: ai_if(prompt("x"), anchor=["a"]), ConfigError, "numbers of placeholders"),
    ],
)
def test_errors_at_the_call(spark, call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert words in str(caught.value)
