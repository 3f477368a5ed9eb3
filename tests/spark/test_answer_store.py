"""The answer store as a user sets it: a keyword, a path, and later engines that compute nothing."""

import pytest

import quail_spark
from quail_spark.errors import ConfigError

from .conftest import MODEL
from .oracle import answer

ASK = "{0} is stored"
QUERY = f"SELECT id FROM range(40) WHERE AI.IF(PROMPT('{ASK}', CONCAT('row ', CAST(id AS STRING))))"


def evaluations(spark) -> tuple[int, int]:
    """(computed, remembered) so far."""
    operators = [o for o in quail_spark.report(spark).operators if any("is stored" in p.question for p in o.predicates)]
    return sum(o.evaluations for o in operators), sum(o.remembered for o in operators)


def test_a_later_engine_computes_nothing(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quail_spark.enable(spark, model=MODEL, answer_store="answers")
    assert spark.conf.get("spark.quail.answerStore") == str(tmp_path / "answers")
    expected = [i for i in range(40) if answer(ASK, f"row {i}")]
    assert sorted(row.id for row in spark.sql(QUERY).collect()) == expected
    computed, remembered = evaluations(spark)
    assert computed == 40
    spark.conf.set("spark.quail.engine.tokenBudget", "777")  # another engine takes the place of the first
    assert sorted(row.id for row in spark.sql(QUERY).collect()) == expected
    assert evaluations(spark) == (computed, remembered + 40)
    assert "answers in memory of the store" in str(quail_spark.report(spark)) and str(tmp_path / "answers") in str(
        quail_spark.report(spark)
    )


def test_credentials_are_refused_before_anything_shows_them(spark):
    with pytest.raises(ConfigError, match="credentials") as caught:
        quail_spark.enable(spark, model=MODEL, answer_store="s3://me:XYZZY@bucket/answers")
    assert "XYZZY" not in str(caught.value)
    assert not spark.conf.get("spark.quail.answerStore", None)
