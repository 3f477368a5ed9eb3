"""Layout `auto`: one choice per question, the same with and without the planner."""

import re

import pytest

import quail_spark
from quail_spark.catalyst import planned
from quail_spark.errors import ConfigError


@pytest.fixture
def mails(spark):
    values = ", ".join(f"({i}, 'mail number {i}: {'long ' * 200}', {i % 3})" for i in range(12))
    frame = spark.sql(f"SELECT * FROM VALUES {values} AS v(id, body, n)").cache()  # of a size that Spark knows
    frame.count()
    frame.createOrReplaceTempView("mails")
    return spark


def ask(words: str, *arguments: str, layout: str | None = None) -> str:
    options = f", {{'layout': '{layout}'}}" if layout else ""
    return f"AI.IF(PROMPT('{words}', {', '.join(arguments)}){options})"


def layouts(spark, sql: str) -> dict[str, str]:
    """By template, of the planner's operators."""
    with planned.recording() as runs:
        spark.sql(sql)._jdf.queryExecution().optimizedPlan()
    specs = [operator.spec for run in runs for operator in run.operators]
    return {p.template: p.layout or spec.layout for spec in specs for p in spec.predicates}


def udf_layouts(spark, sql: str) -> dict[str, str]:
    """By template, of the UDFs in the plan: the option that they read."""
    plan = spark.sql(sql)._jdf.queryExecution().optimizedPlan().toString()
    call = r"named_struct\(template, (.*?), args, array\(.*?\)\), map\(keys: \[layout\], values: \[(\w+)\]\)"
    return dict(re.findall(call, plan))


ONE = ("SELECT id FROM mails WHERE " + ask("{0} is late", "body"), {"{0} is late": "literal"})
SHARED = (
    "SELECT id FROM mails WHERE " + " AND ".join(ask(f"is {word}: {{0}}", "body") for word in "abc"),
    {f"is {word}: {{0}}": "document_first" for word in "abc"},
)
APART = (f"{ONE[0]} AND {ask('is the number {0}', 'n')}", ONE[1] | {"is the number {0}": "literal"})


@pytest.mark.parametrize("case", [ONE, SHARED, APART], ids=["one", "shared", "apart"])
def test_auto_is_the_same_with_and_without_the_planner(mails, case):
    sql, expected = case
    mails.conf.set("spark.quail.prompt.layout", "auto")
    found = layouts(mails, sql)
    assert found == expected
    rows = sorted(map(tuple, mails.sql(sql).collect()))
    mails.conf.set("spark.quail.optimizer.enabled", "false")
    assert udf_layouts(mails, sql) == found
    assert sorted(map(tuple, mails.sql(sql).collect())) == rows


def test_the_option_of_a_call_wins(mails):
    sql = f"SELECT id FROM mails WHERE {ask('{0} x', 'body', layout='literal')} AND {ask('{0} y', 'body')}"
    assert layouts(mails, sql) == {"{0} x": "literal", "{0} y": "document_first"}
    text = quail_spark.explain(mails.sql(sql))
    assert "layout: texts where the template has them" in text and "layout: document before the question" in text
    one = f"SELECT id FROM mails WHERE {ask('{0} x', 'body', layout='auto')}"
    assert layouts(mails, one) == {"{0} x": "literal"}


def test_auto_in_select_case_and_joins(mails):
    mails.conf.set("spark.quail.prompt.layout", "auto")
    sql = (
        f"SELECT m.id, CASE WHEN {ask('{0} in a case', 'm.body')} THEN 1 END FROM mails m JOIN mails t "
        f"ON {ask('{0} meets {1}', 'm.body', 't.body')} WHERE EXISTS (SELECT 1 FROM mails u WHERE {ask('{0} finds {1}', 'm.body', 'u.body')})"
    )
    found = layouts(mails, sql)
    assert set(found) == {"{0} meets {1}", "{0} finds {1}"} and set(found.values()) <= {"document_first", "literal"}
    assert set(udf_layouts(mails, sql)) == {"{0} in a case"}
    assert mails.sql(sql).count() >= 0


def test_an_unknown_layout_is_refused(mails):
    with pytest.raises(ConfigError, match="option layout is 'best'; accepted: document_first, literal, auto"):
        mails.sql(f"SELECT id FROM mails WHERE {ask('{0} x', 'body', layout='best')}")
