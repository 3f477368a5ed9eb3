"""AI calls in SQL that does not come through `spark.sql` of Python: Spark's own parser hands it to the front end."""

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import functions as F

import quail_spark

from .oracle import answer

ASK = "{0} is urgent"
CALL = f"AI.IF(PROMPT('{ASK}', text))"
TEXTS = [None, *(f"mail {i}" for i in range(9))]
ANSWERS = [answer(ASK, text) for text in TEXTS]
PASSING = [i for i, passes in enumerate(ANSWERS) if passes]


@pytest.fixture
def mails(spark):
    frame = spark.createDataFrame(list(enumerate(TEXTS)), "id int, text string")
    frame.createOrReplaceTempView("mails")
    return frame


def through_jvm(spark, text):
    """As a Thrift server does for JDBC."""
    from pyspark.sql import DataFrame

    return DataFrame(spark._jsparkSession.sql(text), spark)


FORMS = [
    CALL,
    f"ai.if ( prompt('{ASK}', text), {{'selectivity': 0.2}})",
    "AI_FILTER(PROMPT('{text} is urgent'))",
    "AI_FILTER(PROMPT('{mails.text} is urgent'), TRUE).value",
    "AI.IF((text, ' is urgent'))",
]
PLACES = {
    "filter": lambda mails, call: mails.filter(call).select("id"),
    "where": lambda mails, call: mails.where(f"id >= 0 AND {call}").select("id"),
    "expr": lambda mails, call: mails.where(F.expr(call)).select("id"),
    "selectExpr": lambda mails, call: mails.selectExpr("id", f"{call} AS urgent").where("urgent").select("id"),
    "EXECUTE IMMEDIATE": lambda mails, call: through_jvm(
        mails.sparkSession, f'EXECUTE IMMEDIATE "SELECT id FROM mails WHERE {call}"'
    ),
    "JDBC": lambda mails, call: through_jvm(mails.sparkSession, f"SELECT id FROM mails WHERE {call}"),
}


@pytest.mark.parametrize("call", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_every_form_in_every_place(mails, place, call):
    if place == "EXECUTE IMMEDIATE" and mails.sparkSession.version < "4.1":
        pytest.skip("Spark 4.0 parses it with a parser of its own")
    frame = PLACES[place](mails.alias("mails"), call)
    assert sorted(row.id for row in frame.collect()) == PASSING
    assert "ai_filter-" in frame._jdf.queryExecution().executedPlan().toString()


def test_temporary_views_that_the_jvm_makes(mails, spark):
    through_jvm(spark, f"CREATE OR REPLACE TEMPORARY VIEW urgent AS SELECT id FROM mails WHERE {CALL}")
    assert sorted(row.id for row in spark.table("urgent").collect()) == PASSING


def test_texts_without_calls_are_not_read(spark):
    said = spark.range(1).selectExpr("'AI.IF(PROMPT(' AS a", "'ai_' AS b", "1 /* AI.IF( */ AS c").first()
    assert tuple(said) == ("AI.IF(PROMPT(", "ai_", 1)
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        spark.range(1).selectExpr("ai.other(id)")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("AI.IF(text)", r"SqlError: AI\.IF\(text\) \(line 1, column 1 of the SQL\).* accepted: AI\.IF\(PROMPT"),
        ("AI.IF(PROMPT('{0} {1}', text))", r"PromptError: .*uses \{1\} but has 1 argument"),
        ("AI.IF(PROMPT('{0}', text), {'selectivity': 3})", r"ConfigError: option selectivity is 3"),
    ],
)
def test_what_is_wrong_is_said(mails, call, words):
    with pytest.raises(IllegalArgumentException, match=words):
        mails.filter(call)


def test_quotes_are_read_as_the_session_reads_them(mails, spark):
    assert sorted(row.id for row in mails.filter(f'AI.IF(PROMPT("{ASK}", text))').collect()) == PASSING
    spark.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    assert sorted(row.id for row in mails.filter(f"AI.IF(PROMPT('{ASK}', \"text\"))").collect()) == PASSING


def test_only_enabled_sessions(mails, spark):
    other = spark.newSession()
    rows = other.createDataFrame(list(enumerate(TEXTS)), "id int, text string")
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        rows.filter(CALL)
    quail_spark.enable(other, model="scripted://contains?word=7")
    assert [row.id for row in rows.filter(CALL).collect()] == [8]
    quail_spark.disable(other)
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        rows.filter(CALL)
    assert sorted(row.id for row in mails.filter(CALL).collect()) == PASSING
