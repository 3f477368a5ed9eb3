"""Which operators leave the KV of their documents to the next one."""

import pytest

from quail_spark.catalyst import planned

ASKS = "AI.IF(PROMPT('{{0}} asks {}', {}))"
MEETS = "AI.IF(PROMPT('{{0}} {} {{1}}', {}, {}){})"


@pytest.fixture
def tables(spark):
    for name in "abc":
        rows = [(i, f"{name} text {i}", i % 3) for i in range(6)]
        spark.createDataFrame(rows, "id int, text string, n int").createOrReplaceTempView(name)
    return spark


def asks(word: str, text: str) -> str:
    return ASKS.format(word, text)


def meets(word: str, anchor: str, partner: str, options: str = "") -> str:
    return MEETS.format(word, anchor, partner, options)


HINT = ", {'anchor': 'b'}"
JOIN = meets("meets", "a.text", "b.text")
STAR = meets("joins", "a.text", "c.text")
CASES = {
    "filter on the anchor": (f"SELECT a.id FROM a JOIN b ON {JOIN} WHERE {asks('x', 'a.text')}", [True, False]),
    "filter on the partner": (f"SELECT a.id FROM a JOIN b ON {JOIN} WHERE {asks('x', 'b.text')}", [False, False]),
    "the hint decides": (
        f"SELECT a.id FROM a JOIN b ON {meets('meets', 'a.text', 'b.text', HINT)} WHERE {asks('x', 'b.text')}",
        [True, False],
    ),
    "star": (f"SELECT a.id FROM a JOIN b ON {JOIN} JOIN c ON {STAR}", [True, False]),
    "filter and star": (f"SELECT a.id FROM a JOIN b ON {JOIN} JOIN c ON {STAR} WHERE {asks('x', 'a.text')}", [True, True, False]),
    "chain": (f"SELECT a.id FROM a JOIN b ON {JOIN} JOIN c ON {meets('joins', 'b.text', 'c.text')}", [False, False]),
    "left outer": (f"SELECT a.id FROM a LEFT JOIN b ON {JOIN} WHERE {asks('x', 'a.text')}", [True, False]),
    "right outer": (f"SELECT b.id FROM a RIGHT JOIN b ON {JOIN} WHERE {asks('x', 'b.text')}", [True, False]),
    "semi": (f"SELECT a.id FROM a LEFT SEMI JOIN b ON {JOIN} WHERE {asks('x', 'a.text')}", [True, False]),
    "other text": (f"SELECT a.id FROM a JOIN b ON {JOIN} WHERE {asks('x', 'upper(a.text)')}", [False, False]),
    "an aggregate between": (
        f"SELECT * FROM (SELECT text, count(*) FROM a WHERE {asks('x', 'text')} GROUP BY text) a JOIN b ON {JOIN}",
        [False, False],
    ),
    "nothing follows": (f"SELECT a.id FROM a WHERE {asks('x', 'a.text')} AND {asks('y', 'a.text')}", [False]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_documents_that_stay(tables, name):
    sql, expected = CASES[name]
    with planned.recording() as runs:
        rows = sorted(map(tuple, tables.sql(sql).collect()))
    assert [operator.spec.retain for run in runs for operator in run.operators] == expected
    tables.conf.set("spark.quail.prompt.layout", "literal")
    with planned.recording() as runs:
        tables.sql(sql)._jdf.queryExecution().optimizedPlan()
    assert not any(operator.spec.retain for run in runs for operator in run.operators)
    if name not in ("left outer", "right outer", "semi"):
        tables.conf.unset("spark.quail.prompt.layout")
        tables.conf.set("spark.quail.optimizer.enabled", "false")
        assert rows == sorted(map(tuple, tables.sql(sql).collect()))
