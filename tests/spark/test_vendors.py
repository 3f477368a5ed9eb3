"""Queries as they are written for other engines: same text, same columns, an answer for every row."""

import warnings

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from .oracle import answer

ROWS = [(1, "the parcel is late", "mail"), (2, "where is my {refund}", None), (3, None, "web"), (4, "it's fine", "web")]
FAILING = "scripted://hash?rate=0.5&seed=7&fail_containing=bad"


@pytest.fixture(params=[True, False], ids=["planned", "udf"])
def reviews(spark, request):
    columns = list(zip(*ROWS, strict=True))
    types = [pa.int32(), pa.string(), pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    spark.createDataFrame(pa.Table.from_arrays(arrays, names=["id", "body", "channel"])).createOrReplaceTempView(
        "reviews"
    )
    spark.conf.set("spark.quail.optimizer.enabled", str(request.param).lower())
    return spark


FORMS = {
    # BigQuery
    "SELECT id FROM reviews WHERE AI.IF(('Is this about a refund? ', body))": "Is this about a refund? {0}",
    "SELECT id FROM reviews WHERE AI.IF(prompt => (body, ' is polite'))": "{0} is polite",
    "SELECT id FROM reviews WHERE AI.IF(STRUCT('Review: ' AS q, body AS b, '. Angry?'))": "Review: {0}. Angry?",
    "SELECT id FROM reviews WHERE AI.IF(CONCAT('{x} in ', body))": "{{x}} in {0}",
    "SELECT id FROM reviews WHERE AI.IF('About money: ' || body)": "About money: {0}",
    "SELECT id FROM reviews WHERE AI.GENERATE_BOOL(('Spam? ', body), connection_id => 'us.c', endpoint => 'g').result": "Spam? {0}",
    "SELECT id FROM (SELECT id, AI.GENERATE_BOOL(('Late? ', body)) AS g FROM reviews) WHERE g.result AND g.status IS NULL": "Late? {0}",
    # Databricks
    "SELECT id FROM reviews WHERE ai_query('ep', CONCAT('Rude? ', body), returnType => 'BOOLEAN')": "Rude? {0}",
    "SELECT id FROM reviews WHERE ai_query('ep', 'Kind? ' || body, returnType => 'BOOLEAN', failOnError => false).result": "Kind? {0}",
    # Snowflake
    "SELECT id FROM reviews WHERE AI_FILTER('Is it a complaint? ' || body)": "Is it a complaint? {0}",
    "SELECT id FROM reviews WHERE SNOWFLAKE.CORTEX.AI_FILTER(PROMPT('{0} is a question', body))": "{0} is a question",
}


@pytest.mark.filterwarnings("ignore:ignored in AI calls")
@pytest.mark.parametrize("sql", FORMS)
def test_one_text(reviews, sql):
    got = sorted(row.id for row in reviews.sql(sql).collect())
    assert got == [i for i, body, _ in ROWS if answer(FORMS[sql], body)]


def test_two_texts_and_a_join(reviews):
    got = reviews.sql("SELECT id FROM reviews WHERE AI.IF((body, ' came by ', channel, '.'))").collect()
    assert sorted(row.id for row in got) == [i for i, b, c in ROWS if answer("{0} came by {1}.", b, c)]
    got = reviews.sql(
        "SELECT a.id x, b.id y FROM reviews a JOIN reviews b ON AI.IF(('Same issue? ', a.body, ' / ', b.body)) AND a.id < b.id"
    ).collect()
    assert sorted(map(tuple, got)) == [
        (a[0], b[0]) for a in ROWS for b in ROWS if a[0] < b[0] and answer("Same issue? {0} / {1}", a[1], b[1])
    ]


def test_bigquery_arguments_without_a_meaning(reviews):
    sql = (
        "SELECT id FROM reviews WHERE AI.IF(('Spam? ', body), connection_id => 'us.gemini', endpoint => 'gemini-2.5-flash', "
        "optimization_mode => 'MINIMIZE_COST')"
    )
    with pytest.warns(UserWarning, match="ignored in AI calls.*connection_id, endpoint") as caught:
        got = reviews.sql(sql).collect()
    assert len([w for w in caught if "ignored" in str(w.message)]) == 1
    assert sorted(row.id for row in got) == [i for i, body, _ in ROWS if answer("Spam? {0}", body)]


@pytest.fixture
def failing(reviews):
    """One row in four fails; in a single task, since the share is one of a task's rows."""
    reviews.conf.set("spark.quail.model", FAILING)
    reviews.sql(
        "SELECT id, IF(id % 4 = 1, 'bad ', 'good ') || id AS body FROM range(0, 40, 1, 1)"
    ).createOrReplaceTempView("f")
    return reviews


def test_bigquery_max_error_ratio(failing):
    sql = "SELECT id FROM f WHERE AI.IF(('Is it? ', body), max_error_ratio => {})"
    good = [i for i in range(40) if i % 4 != 1 and answer("Is it? {0}", f"good {i}")]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert sorted(row.id for row in failing.sql(sql.format(0.25)).collect()) == good
        assert sorted(row.id for row in failing.sql(sql.format("1.0")).collect()) == good
    with pytest.raises(
        PythonException, match=r"10 of 40 rows of a task could not be answered, and max_error_ratio is 0\.2;"
    ):
        failing.sql(sql.format(0.2)).collect()
    failing.conf.set("spark.quail.onError", "null")
    with pytest.raises(PythonException, match="max_error_ratio is 0"):
        failing.sql(sql.format(0)).collect()


def test_snowflake_error_details(failing):
    got = failing.sql(
        "SELECT id, r.value, r.error FROM (SELECT id, AI_FILTER(PROMPT('{0} is it?', body), TRUE) AS r FROM f UNION ALL "
        "SELECT 99, AI_FILTER(PROMPT('{0} is it?', NULL), TRUE))"
    ).collect()
    found = {row.id: (row.value, row.error) for row in got}
    assert found.pop(99) == (None, None)
    for i, (value, error) in found.items():
        if i % 4 == 1:
            assert value is None and "told to fail" in error
        else:
            assert (value, error) == (answer("{0} is it?", f"good {i}"), None)
    kept = failing.sql("SELECT id FROM f WHERE AI_FILTER(PROMPT('{0} is it?', body), TRUE).value").collect()
    assert sorted(row.id for row in kept) == [i for i, (value, _) in sorted(found.items()) if value]


@pytest.mark.filterwarnings("ignore:ignored in AI calls")
def test_structs_as_bigquery_and_databricks_name_them(failing):
    got = failing.sql(
        "SELECT id, AI.GENERATE_BOOL((body, ' is it?')) AS g, "
        "ai_query('ep', body || ' is it?', returnType => 'BOOLEAN', failOnError => false) AS q FROM f"
    )
    assert got.schema["g"].dataType.names == ["result", "status"]
    assert got.schema["q"].dataType.names == ["result", "errorMessage"]
    for row in got.collect():
        assert tuple(row.g) == tuple(row.q)
        if row.id % 4 == 1:
            assert row.g.result is None and "told to fail" in row.g.status
        else:
            assert tuple(row.g) == (answer("{0} is it?", f"good {row.id}"), None)


@pytest.mark.filterwarnings("ignore:ignored in AI calls")
def test_the_answer_of_a_struct_is_null_where_there_is_none(failing):
    good = [i for i in range(40) if i % 4 != 1 and answer("Is it? {0}", f"good {i}")]
    for call in (
        "AI.GENERATE_BOOL(('Is it? ', body)).result",
        "AI_FILTER('Is it? ' || body, TRUE).value",
        "ai_query('ep', 'Is it? ' || body, returnType => 'BOOLEAN', failOnError => false).result",
    ):
        assert sorted(row.id for row in failing.sql(f"SELECT id FROM f WHERE {call}").collect()) == good
    with pytest.raises(PythonException, match=r"max_error_ratio is 0\.1"):
        failing.sql(
            "SELECT id FROM f WHERE AI.GENERATE_BOOL(('Is it? ', body), max_error_ratio => 0.1).result"
        ).collect()


def test_a_query_in_brackets_and_case_as_parts(reviews):
    got = reviews.sql(
        "SELECT id FROM reviews WHERE AI.IF(('Newer than ', (SELECT max(channel) FROM reviews), '? ', body)) "
        "AND AI.IF('By ' || CASE WHEN channel = 'web' THEN 'the ' || channel ELSE channel END || '?')"
    ).collect()
    assert sorted(row.id for row in got) == [
        i
        for i, body, channel in ROWS
        if answer("Newer than {0}? {1}", "web", body) and answer("By {0}?", "the web" if channel == "web" else channel)
    ]


def test_double_quotes_that_make_a_name(reviews):
    reviews.conf.set("spark.sql.ansi.enabled", "true")
    reviews.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    got = reviews.sql("SELECT id FROM reviews WHERE AI.IF(('Is it ', \"reviews\".\"body\", '?'))").collect()
    assert sorted(row.id for row in got) == [i for i, body, _ in ROWS if answer("Is it {0}?", body)]
    reviews.conf.set("spark.sql.ansi.enabled", "false")
    got = reviews.sql("SELECT id FROM reviews WHERE AI.IF((\"Is it \", body, '?'))").collect()
    assert sorted(row.id for row in got) == [i for i, body, _ in ROWS if answer("Is it {0}?", body)]


def test_escapes_that_stand_for_braces(reviews):
    got = reviews.sql(r"SELECT id FROM reviews WHERE AI.IF(('\u007bx\175 ', body))").collect()
    assert sorted(row.id for row in got) == [i for i, body, _ in ROWS if answer("{{x}} {0}", body)]
    reviews.conf.set("spark.sql.parser.escapedStringLiterals", "true")
    got = reviews.sql(r"SELECT id FROM reviews WHERE AI.IF(('\175 ', body))").collect()
    assert sorted(row.id for row in got) == [i for i, body, _ in ROWS if answer(r"\175 {0}", body)]


def test_options_that_are_no_constants(reviews):
    sql = "SELECT id FROM reviews WHERE AI.IF(PROMPT('{{body}} is it?'), {{'selectivity': {}}})"
    for rate in ("id / 10", "NULL", "1/3"):
        got = sorted(row.id for row in reviews.sql(sql.format(rate)).collect())
        assert got == [i for i, body, _ in ROWS if answer("{0} is it?", body)]
    with pytest.raises(Exception, match=r"option selectivity is 1\.5; accepted: a number from 0 to 1"):
        reviews.sql(sql.format("1.5D")).collect()
