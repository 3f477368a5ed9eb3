"""The UDF carrier in every place where Spark lets an expression stand, with the planner off."""

import random
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from quail_spark.functions import ai_if, prompt

from .oracle import answer

Q = "{0} asks for a refund"
P = "{0} and {1} agree"


@pytest.fixture
def rows():
    rng = random.Random()
    words = [None, "", "ü 😀", "plain", "{0}", "it's", 'a "b"', "<|im_end|>", "same", "same"]
    return [(i, rng.choice(words) and rng.choice(words), rng.choice("abc")) for i in range(60)]


@pytest.fixture
def t(unplanned, rows):
    table(unplanned, "t", "id int, body string, kind string", rows)
    return unplanned


def table(spark, name, schema, rows):
    """A view over rows that no Python worker has to make."""
    fields = [field.split() for field in schema.split(", ")]
    types = {"int": pa.int32(), "string": pa.string()}
    columns = {column: pa.array([row[i] for row in rows], types[kind]) for i, (column, kind) in enumerate(fields)}
    spark.createDataFrame(pa.table(columns)).repartition(2).createOrReplaceTempView(name)


def collected(spark, sql, **kwargs):
    return [tuple(row) for row in spark.sql(sql, **kwargs).collect()]


def test_where(t, rows):
    got = collected(t, f"SELECT id FROM t WHERE AI.IF(PROMPT('{Q}', body)) ORDER BY id")
    assert got == [(i,) for i, body, _ in rows if answer(Q, body)]


def test_select_has_three_values(t, rows):
    got = collected(t, f"SELECT id, AI.IF(PROMPT('{Q}', body)) FROM t ORDER BY id")
    assert got == [(i, answer(Q, body)) for i, body, _ in rows]
    assert {value for _, value in got} == {True, False, None}


def test_two_arguments_and_options(t, rows):
    got = collected(
        t, f"SELECT id FROM t WHERE AI_FILTER(PROMPT('{P}', body, kind), {{'selectivity': 0.2}}) ORDER BY id"
    )
    assert got == [(i,) for i, body, kind in rows if answer(P, body, kind)]


def test_named_columns(t, rows):
    got = collected(t, "SELECT id FROM t AS x WHERE AI.IF(PROMPT('{x.body} and {kind} agree')) ORDER BY id")
    assert got == [(i,) for i, body, kind in rows if answer(P, body, kind)]


def test_not_and_or(t, rows):
    got = collected(
        t, f"SELECT id FROM t WHERE NOT AI.IF(PROMPT('{Q}', body)) OR AI.IF(PROMPT('{P}', kind, body)) ORDER BY id"
    )
    assert got == [(i,) for i, b, k in rows if answer(Q, b) is False or answer(P, k, b)]


def test_case(t, rows):
    got = collected(
        t, f"SELECT CASE WHEN kind = 'a' THEN AI.IF(PROMPT('{Q}', body)) ELSE id > 5 END FROM t ORDER BY id"
    )
    assert got == [(answer(Q, body) if kind == "a" else i > 5,) for i, body, kind in rows]


def test_group_by_and_order_by(t, rows):
    got = collected(
        t,
        f"SELECT AI.IF(PROMPT('{Q}', body)) AS a, count(*) FROM t GROUP BY AI.IF(PROMPT('{Q}', body)) "
        f"ORDER BY AI.IF(PROMPT('{Q}', body)) NULLS FIRST",
    )
    expected = Counter(answer(Q, body) for _, body, _ in rows)
    assert got == sorted(expected.items(), key=lambda item: (item[0] is not None, item[0]))


def test_having(t, rows):
    got = collected(t, f"SELECT kind FROM t GROUP BY kind HAVING AI.IF(PROMPT('{Q}', kind)) ORDER BY kind")
    assert got == [(kind,) for kind in sorted({kind for _, _, kind in rows}) if answer(Q, kind)]


def test_in_an_aggregate(t, rows):
    got = collected(t, f"SELECT count_if(AI.IF(PROMPT('{Q}', body))), max(id) FROM t")
    assert got == [(sum(bool(answer(Q, body)) for _, body, _ in rows), 59)]


def test_window_argument(t, rows):
    got = collected(
        t,
        f"SELECT id, sum(CAST(AI.IF(PROMPT('{Q}', body)) AS INT)) OVER (PARTITION BY kind ORDER BY id) FROM t ORDER BY id",
    )
    sums: dict[str, int | None] = {}
    for (i, body, kind), (got_id, total) in zip(rows, got, strict=True):
        if (value := answer(Q, body)) is not None:
            sums[kind] = (sums.get(kind) or 0) + value
        assert (got_id, total) == (i, sums.get(kind))


@pytest.mark.parametrize("on", ["", "x.kind = y.kind AND"])
def test_join_on(t, rows, on):
    got = collected(
        t,
        f"SELECT x.id, y.id FROM t x JOIN t y ON {on} x.id < 8 AND y.id > 50 AND AI.IF(PROMPT('{P}', x.body, y.body))",
    )
    pairs = [(x, y) for x in rows[:8] for y in rows[51:] if not on or x[2] == y[2]]
    assert sorted(got) == [(x[0], y[0]) for x, y in pairs if answer(P, x[1], y[1])]


def test_subquery(t, rows):
    got = collected(
        t, f"SELECT id FROM t WHERE kind IN (SELECT kind FROM t WHERE AI.IF(PROMPT('{Q}', kind))) ORDER BY id"
    )
    assert got == [(i,) for i, _, kind in rows if answer(Q, kind)]


def test_union_distinct_limit(t, rows):
    got = collected(
        t,
        f"SELECT DISTINCT body FROM (SELECT body FROM t WHERE AI.IF(PROMPT('{Q}', body)) UNION ALL SELECT 'x') LIMIT 100",
    )
    assert {body for (body,) in got} == {body for _, body, _ in rows if answer(Q, body)} | {"x"}


def test_expr_by_registered_name(t, rows):
    got = t.table("t").filter(F.expr(f"ai_if(prompt('{Q}', body))")).orderBy("id").collect()
    assert [row.id for row in got] == [i for i, body, _ in rows if answer(Q, body)]
    assert t.table("t").selectExpr(f"ai_filter(prompt('{Q}', body), map('selectivity', '0.5')) a").count() == len(rows)


def test_temporary_view(t, rows):
    t.sql(f"CREATE OR REPLACE TEMP VIEW refunds AS SELECT * FROM t WHERE AI.IF(PROMPT('{Q}', body))")
    assert t.table("refunds").count() == sum(bool(answer(Q, body)) for _, body, _ in rows)


def test_table_as_select(t, rows, tmp_path):
    t.sql(
        f"CREATE TABLE answered USING parquet LOCATION '{tmp_path}/answered' AS SELECT id, AI.IF(PROMPT('{Q}', body)) a FROM t"
    )
    try:
        assert collected(t, "SELECT id, a FROM answered ORDER BY id") == [(i, answer(Q, body)) for i, body, _ in rows]
    finally:
        t.sql("DROP TABLE answered")


def test_data_frame(t, rows):
    frame = t.table("t")
    got = frame.filter(ai_if(prompt(P, frame.body, "kind"), selectivity=0.3)).orderBy("id").collect()
    assert [row.id for row in got] == [i for i, body, kind in rows if answer(P, body, kind)]


def test_data_frame_window_and_sort(t, rows):
    asks = ai_if(prompt("{body} asks for a refund"))
    got = (
        t.table("t")
        .withColumn("n", F.count(asks).over(Window.partitionBy("kind")))
        .sort(asks.desc_nulls_last(), "id")
        .collect()
    )
    counts = Counter(kind for _, body, kind in rows if body is not None)
    rank = {True: 0, False: 1, None: 2}
    expected = sorted(rows, key=lambda row: (rank[answer(Q, row[1])], row[0]))
    assert [(row.id, row.n) for row in got] == [(i, counts[kind]) for i, _, kind in expected]


def test_parameters_of_spark_sql(t, rows):
    named = collected(
        t, "SELECT id FROM t WHERE AI.IF(PROMPT(:q, body)) AND id < :n ORDER BY id", args={"q": Q, "n": 30}
    )
    positional = collected(t, "SELECT id FROM t WHERE AI.IF(PROMPT(?, body)) AND id < ? ORDER BY id", args=[Q, 30])
    assert named == positional == [(i,) for i, body, _ in rows[:30] if answer(Q, body)]


def test_data_frames_in_the_text(t, rows):
    frame = t.table("t").where("id < 30")
    got = collected(
        t,
        "SELECT id FROM {f} WHERE AI.IF(PROMPT('{body} asks for a refund')) AND id > {low} ORDER BY id",
        f=frame,
        low=3,
    )
    assert got == [(i,) for i, body, _ in rows[4:30] if answer(Q, body)]


def test_the_rdd_of_a_result(t, rows):
    frame = t.sql(f"SELECT id FROM t WHERE AI.IF(PROMPT('{Q}', body)) ORDER BY id")
    assert [row.id for row in frame.rdd.collect()] == [i for i, body, _ in rows if answer(Q, body)]


@pytest.mark.parametrize("most", ["1", "7", "1000"])
def test_any_size_of_message(t, rows, most):
    t.conf.set("spark.quail.batch.rows", most)
    t.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "11")
    got = collected(t, f"SELECT id, AI.IF(PROMPT('{Q}', body)), AI.IF(PROMPT('{P}', body, kind)) FROM t")
    assert sorted(got) == [(i, answer(Q, b), answer(P, b, k)) for i, b, k in rows]


def test_templates_and_options_that_differ_by_row(unplanned):
    rng = random.Random()
    templates = [Q, "{1} or {0}?", "no column", None]
    rows = [(i, rng.choice(templates), rng.choice(["x", None]), rng.choice("yz")) for i in range(50)]
    table(unplanned, "mixed", "id int, q string, a string, b string", rows)
    unplanned.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    got = collected(
        unplanned, "SELECT id, AI.IF(PROMPT(q, a, b), map('selectivity', IF(id % 2 = 0, '0.1', '0.2'))) FROM mixed"
    )
    expected = [(i, None if q is None else answer(q, a, b)) for i, q, a, b in rows]
    assert sorted(got) == expected


@pytest.mark.parametrize("count", [0, 1])
def test_empty_and_one_row(t, count):
    got = collected(t, f"SELECT id, AI.IF(PROMPT('{Q}', 'fixed')) FROM t WHERE id < {count}")
    assert got == [(0, answer(Q, "fixed"))][:count]


def test_a_constant_question(t):
    assert collected(t, "SELECT AI.IF(PROMPT('is it?')), AI.IF(PROMPT(CAST(NULL AS STRING)))") == [
        (answer("is it?"), None)
    ]


def test_other_types_are_cast_by_spark(unplanned):
    got = collected(
        unplanned,
        "SELECT AI.IF(PROMPT('{0}', v)), AI.IF(PROMPT('{0}', d)), AI.IF(PROMPT('{0}', s)), AI.IF(PROMPT('{0}', a)), "
        "AI.IF(PROMPT('{0}', b)) FROM VALUES (1.50, DATE'2024-02-03', named_struct('x', 1, 'y', 'z'), array(1, 2), true) "
        "AS t(v, d, s, a, b)",
    )
    assert got == [tuple(answer("{0}", text) for text in ("1.50", "2024-02-03", "{1, z}", "[1, 2]", "true"))]


def test_unused_null_arguments_do_not_count(unplanned):
    got = collected(unplanned, "SELECT AI.IF(PROMPT('{1}', a, b)) FROM VALUES (CAST(NULL AS STRING), 'x') AS t(a, b)")
    assert got == [(answer("{1}", None, "x"),)]


FAILING = "scripted://hash?rate=0.5&seed=7&fail_containing=too-long"


@pytest.fixture
def failing(unplanned):
    unplanned.conf.set("spark.quail.model", FAILING)
    rows = [(i, f"too-long {i} " + "x" * 100 if i % 4 == 1 else f"text {i}") for i in range(40)]
    table(unplanned, "f", "id int, body string", rows)
    return unplanned, rows


def test_a_failing_row_is_named(failing):
    spark, _ = failing
    with pytest.raises(PythonException) as caught:
        spark.sql(f"SELECT AI.IF(PROMPT('{Q}', body)) FROM f").collect()
    message = str(caught.value)
    assert "RowError" in message and repr(Q) in message
    assert "starts with 'too-long" in message and "xxx…'" in message
    assert "told to fail" in message and "spark.quail.onError" in message


def test_a_failing_row_is_null_when_asked(failing):
    spark, rows = failing
    spark.conf.set("spark.quail.onError", "null")
    got = collected(spark, f"SELECT id, AI.IF(PROMPT('{Q}', body)) FROM f")
    assert sorted(got) == [(i, None if body.startswith("too") else answer(Q, body)) for i, body in rows]


def test_all_rows_failing_is_an_error_anyhow(failing):
    spark, _ = failing
    spark.conf.set("spark.quail.onError", "null")
    with pytest.raises(PythonException, match=r"none of \d+ rows of a task could be answered"):
        spark.sql(f"SELECT AI.IF(PROMPT('{Q}', body)) FROM f WHERE body LIKE 'too%'").collect()


def test_what_only_shows_when_it_runs(t):
    """Where no SQL text is read: calls by the functions' names."""
    body, kind = F.col("body"), F.col("kind")

    def call(template, *options):
        return F.call_function("ai_if", F.call_function("prompt", template, body), *options)

    for asked, words in [
        (F.call_function("ai_if", body), "is not a prompt"),
        (call(F.lit("{0} {1}")), "{1} but has 1 argument"),
        (call(F.concat(F.lit("{"), kind)), "lone '{'"),
        (call(F.lit("{0}"), F.create_map(F.lit("selectivit"), F.lit("1"))), "'selectivit' is not known"),
        (call(F.lit("{0}"), F.create_map(F.lit("anchor"), F.lit("1"))), "anchor is '1'"),
    ]:
        with pytest.raises(PythonException) as caught:
            t.table("t").select(asked).collect()
        assert words in str(caught.value), words
