"""Join types around AI conditions: what is planned, in which way, and what is refused with which words."""

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException, PythonException
from pyspark.sql import functions as F

import quail_spark
from quail_spark.functions import ai_if, prompt

from .engine_calls import calls
from .oracle import answer
from .sql_model import JOINS, Ai, Column, Compare, Join, Not, Query, Subquery, Table, World

SCHEMA = pa.schema([("id", pa.int32()), ("text", pa.string()), ("grp", pa.string()), ("n", pa.int32())])
ROWS = {
    "mails": [
        (1, "the parcel is late", "a", 1),
        (2, "where is my refund", "b", 2),
        (3, "the parcel is late", "a", 3),
        (4, None, "a", 4),
        (5, "thank you", None, 5),
        (6, "", "b", None),
        (6, "", "b", None),
        (7, "it's broken", "c", 2),
        (8, "please call back", "d", 1),
    ],
    "topics": [
        (1, "delivery", "a", 3),
        (2, "money", "b", 1),
        (3, "praise", None, 2),
        (4, None, "a", None),
        (5, "quality", "c", 2),
        (5, "quality", "c", 2),
        (6, "spam", "e", 9),
    ],
    "nothing": [],
}
KINDS = [kind for kind in JOINS if kind != "comma"]


@pytest.fixture
def tables(spark):
    for name, rows in ROWS.items():
        arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
        frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=SCHEMA))
        frame.repartition(2).createOrReplaceTempView(name)
    return spark


def ask(tag, *aliases):
    places = " ".join(f"{{{i}}}" for i in range(len(aliases)))
    return Ai(f"{places} {tag}", tuple(Column(alias, "text") for alias in aliases))


def star(join: Join) -> Query:
    """All columns in the order of SELECT *."""
    return Query(tuple(Column(alias, name) for alias in join.visible for name in SCHEMA.names), join)


def expected(query) -> list:
    return sorted(query.rows(World(ROWS, answer)), key=repr)


def result(frame) -> list:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def physical(frame) -> str:
    frame.collect()
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("empty", ["", "left", "right"])
def test_select_star(tables, kind, empty):
    left, right = ("nothing" if empty == side else name for side, name in (("left", "mails"), ("right", "topics")))
    join = Join(kind, Table(left, "m"), Table(right, "t"), (ask(f"star {kind} {empty}", "t", "m"),))
    query = star(join)
    assert result(tables.sql(f"SELECT * FROM {join.sql()}")) == expected(query)
    assert set(calls(tables, f"star {kind} {empty}").values()) <= {1}


@pytest.mark.parametrize("anchor", ["m", "t"])
def test_either_anchor_gives_the_same_columns(tables, anchor):
    join = Join("inner", Table("mails", "m"), Table("topics", "t"), (ask(f"either {anchor}", "t", "m"),))
    hinted = join.sql().removesuffix(")") + f", {{'anchor': '{anchor}'}})"
    assert result(tables.sql(f"SELECT * FROM {hinted}")) == expected(star(join))


@pytest.mark.parametrize("kind", KINDS)
def test_partners_too_large_to_broadcast_are_sorted(tables, kind):
    tables.conf.set("spark.quail.join.broadcastBytes", "0")
    tables.conf.set("spark.quail.join.blockRows", "1")
    on = (Compare("=", Column("m", "grp"), Column("t", "grp")), ask(f"sorted {kind}", "m", "t"))
    join = Join(
        kind, Table("mails", "m"), Table("topics", "t"), (*on, Compare("<>", Column("m", "n"), Column("t", "n")))
    )
    frame = tables.sql(f"SELECT * FROM {join.sql()}")
    assert result(frame) == expected(star(join))
    plan = physical(frame)
    assert "SortMergeJoin" in plan and "Broadcast" not in plan
    assert set(calls(tables, f"sorted {kind}").values()) <= {1}


def test_without_an_equality_partners_are_broadcast_whatever_their_size(tables):
    tables.conf.set("spark.quail.join.broadcastBytes", "0")
    join = Join("left", Table("mails", "m"), Table("topics", "t"), (ask("large", "m", "t"),))
    frame = tables.sql(f"SELECT * FROM {join.sql()}")
    assert "over spark.quail.join.broadcastBytes (0)" in quail_spark.explain(frame)
    assert result(frame) == expected(star(join))


@pytest.mark.parametrize("kind", KINDS)
def test_where_cross_joins_are_forbidden(tables, kind):
    """An AI condition is a condition, though the planner takes it out of the join."""
    tables.conf.set("spark.sql.crossJoin.enabled", "false")
    on = (ask(f"forbidden {kind}", "m", "t"), Compare("<", Column("m", "n"), Column("t", "n")))
    join = Join(kind, Table("mails", "m"), Table("topics", "t"), on)
    assert result(tables.sql(f"SELECT * FROM {join.sql()}")) == expected(star(join))
    if kind != "inner":  # which Spark evaluates, and refuses as it does for any UDF
        negated = Join(kind, join.left, join.right, (Not(ask(f"forbidden {kind}", "m", "t")),))
        assert result(tables.sql(f"SELECT * FROM {negated.sql()}")) == expected(star(negated))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("inner", "cross")])
def test_without_the_planner_spark_would_refuse(tables, kind):
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    join = Join(kind, Table("mails", "m"), Table("topics", "t"), (ask("refused", "m", "t"),))
    with pytest.raises(IllegalArgumentException) as caught:
        tables.sql(f"SELECT * FROM {join.sql()}").collect()
    message = str(caught.value)
    assert "{m.text} {t.text} refused" in message and "spark.quail.optimizer.enabled is false" in message
    assert kind in message


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("item", [None, Column("m", "n")])
def test_subqueries_without_the_planner(tables, negated, item):
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    found = Subquery("topics", "t", (ask("sub", "m", "t"),), negated, item)
    with pytest.raises(IllegalArgumentException, match=r"EXISTS.*spark\.quail\.optimizer\.enabled is false"):
        tables.sql(f"SELECT id FROM mails m WHERE {found.sql()}").collect()
    one_sided = Subquery(
        "topics", "t", (ask("sided", "t"), Compare("=", Column("t", "grp"), Column("m", "grp"))), negated
    )
    query = Query((Column("m", "id"),), Table("mails", "m"), (one_sided,))
    assert result(tables.sql(query.sql())) == expected(query)


def test_errors_of_the_planner_name_the_fault(tables):
    with pytest.raises(IllegalArgumentException, match="ConfigError: option anchor is '7'"):
        tables.sql(
            "SELECT m.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0} {1}', m.text, t.text), {'anchor': 7})"
        ).collect()


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL", "INNER", "LEFT SEMI", "LEFT ANTI", "EXISTS"])
def test_what_may_raise_is_computed_where_the_other_conditions_hold(tables, kind):
    """As in Spark's own joins: a division stands behind the condition that its divisor is not 0."""

    def query(quotient):
        on = f"m.n <> 2 AND t.n <> 2 AND AI.IF(PROMPT('{{0}} {{1}} {kind} guarded', {quotient('m.n')}, {quotient('t.n')}))"
        if kind == "EXISTS":
            return f"SELECT m.id, EXISTS (SELECT 1 FROM topics t WHERE {on}) AS e FROM mails m"
        return f"SELECT * FROM mails m {kind} JOIN topics t ON {on}"

    guarded = result(tables.sql(query(lambda n: f"CASE WHEN {n} <> 2 THEN 10 / ({n} - 2) END")))
    assert result(tables.sql(query(lambda n: f"10 / ({n} - 2)"))) == guarded


@pytest.mark.parametrize(("rate", "most"), [(1, 7), (0, 60)])
@pytest.mark.parametrize("word", ["EXISTS", "NOT EXISTS"])
def test_subqueries_stop_at_the_first_true(tables, rate, most, word):
    """60 partners in blocks of 7: where all answer TRUE, an anchor asks one round; where none does, all of them once."""
    tables.conf.set("spark.quail.model", f"scripted://hash?rate={rate}")
    tables.conf.set("spark.quail.join.blockRows", "7")
    tables.sql("SELECT CAST(id AS STRING) text FROM range(60)").createOrReplaceTempView("numbers")
    where = "SELECT 1 FROM numbers n WHERE AI.IF(PROMPT('{m.text} {n.text} early'))"
    tables.sql(f"SELECT id FROM mails m WHERE {word} ({where})").collect()
    asked = calls(tables, " early")
    assert set(asked.values()) == {1}
    texts = {row[1] for row in ROWS["mails"] if row[1] is not None}
    counts = {text: sum(t == text for _, (t, _) in asked) for text in texts}
    assert all(count <= most if rate else count == most for count in counts.values()), counts


@pytest.mark.parametrize("how", ["inner", "cross", "left", "right", "outer", "full_outer", "left_semi", "left_anti"])
def test_data_frames(tables, how):
    m, t = tables.table("mails").alias("m"), tables.table("topics").alias("t")
    condition = ai_if(prompt(f"{{m.text}} frame {how} {{t.text}}"))
    got = m.join(t, on=condition & (F.col("m.grp") == F.col("t.grp")), how=how)
    kind = {"outer": "full", "full_outer": "full", "left_semi": "semi", "left_anti": "anti"}.get(how, how)
    template = f"{{0}} frame {how} {{1}}"
    call = Ai(template, (Column("m", "text"), Column("t", "text")))
    on = (Compare("=", Column("m", "grp"), Column("t", "grp")), call)
    assert result(got) == expected(star(Join(kind, Table("mails", "m"), Table("topics", "t"), on)))


def test_correlated_scalar_and_lateral_subqueries(tables):
    def topics(tag, m):
        return [t for t in ROWS["topics"] if answer("{0} {1} " + tag, m[1], t[1])]

    where = "WHERE AI.IF(PROMPT('{{m.text}} {{t.text}} {}'))"
    got = tables.sql(f"SELECT m.id, (SELECT count(*) FROM topics t {where.format('scalar')}) FROM mails m")
    assert result(got) == sorted((m[0], len(topics("scalar", m))) for m in ROWS["mails"])
    got = tables.sql(f"SELECT m.id, x.id FROM mails m, LATERAL (SELECT t.id FROM topics t {where.format('lateral')}) x")
    assert result(got) == sorted((m[0], t[0]) for m in ROWS["mails"] for t in topics("lateral", m))


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_scalar_subqueries_of_one_row(tables, negated):
    """For a question that at most one topic answers; then for one that several do."""

    def topics(tag, m):
        answers = [(t[0], answer("{0} {1} " + tag, m[1], t[1])) for t in ROWS["topics"] if t[2] == m[2] is not None]
        return [i for i, value in answers if value is (not negated)]

    most = {tag: max(len(topics(tag, m)) for m in ROWS["mails"]) for tag in map("single {}".format, range(200))}
    sql = (
        "SELECT m.id, (SELECT t.id FROM topics t WHERE m.grp = t.grp AND "
        + negated
        + "AI.IF(PROMPT('{{m.text}} {{t.text}} {}'))) FROM mails m"
    )
    tag = next(tag for tag, count in most.items() if count == 1)
    got = tables.sql(sql.format(tag))
    assert result(got) == sorted(((m[0], *(topics(tag, m) or [None])) for m in ROWS["mails"]), key=repr)
    with pytest.raises(PythonException, match="a scalar subquery gave more than one row"):
        tables.sql(sql.format(next(tag for tag, count in most.items() if count > 1))).collect()


def test_both_sides_of_a_full_outer_join_are_read_once(tables):
    join = Join("full", Table("mails", "m"), Table("topics", "t"), (ask("once", "m", "t"),))
    frame = tables.sql(f"SELECT m.id, t.id FROM {join.sql()}")
    assert physical(frame).count("ReusedExchange") == 2


def test_columns_of_any_type_pass(tables):
    values = (
        "SELECT *, array(n, 2) AS a, named_struct('x', n, 'y', grp) AS s, map(id, text) AS k, CAST(n AS DECIMAL(9, 2)) AS d, "
        "DATE'2024-02-03' + n AS day, CAST('2024-01-01 10:00:00' AS TIMESTAMP) AS at, CAST(grp AS BINARY) AS b, n / 3 AS f "
        "FROM {}"
    )
    for name in ("mails", "topics"):
        tables.sql(values.format(name)).createOrReplaceTempView(f"wide_{name}")
    on = "m.grp = t.grp AND AI.IF(PROMPT('{m.text} {t.text} wide'))"
    got = tables.sql(f"SELECT m.*, t.* FROM wide_mails m FULL OUTER JOIN wide_topics t ON {on}")
    pairs = tables.sql(f"SELECT m.id, t.id FROM mails m FULL OUTER JOIN topics t ON {on}").distinct().collect()
    by_id = {n: {r.id: tuple(r) for r in tables.table(f"wide_{n}").collect()} for n in ("mails", "topics")}
    nothing = (None,) * 12
    wanted = {repr(by_id["mails"].get(m, nothing) + by_id["topics"].get(t, nothing)) for m, t in pairs}
    assert {repr(tuple(row)) for row in got.collect()} == wanted


def test_a_type_that_cannot_cross_is_named(tables):
    tables.sql("SELECT *, make_interval(1) AS i FROM mails").createOrReplaceTempView("odd")
    with pytest.raises(IllegalArgumentException, match="column i of type INTERVAL can't cross to Python"):
        tables.sql("SELECT * FROM odd m LEFT JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text} odd'))").collect()
    inner = tables.sql(
        "SELECT m.id, CAST(i AS STRING) FROM odd m JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text} odd'))"
    )
    assert sorted(row.id for row in inner.collect()) == sorted(
        m[0] for m in ROWS["mails"] for t in ROWS["topics"] if answer("{0} {1} odd", m[1], t[1])
    )


EXPLAINED = [
    ("SELECT m.id FROM mails m LEFT JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text}'))", "1. AI left outer join ("),
    ("SELECT m.id FROM mails m RIGHT JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text}'))", "anchor: t.text; partner: m.text"),
    ("SELECT m.id FROM mails m WHERE EXISTS (SELECT 1 FROM topics t WHERE AI.IF(PROMPT('{m.text} {t.text}')))", "growing rounds up to its first TRUE"),
    ("SELECT m.id FROM mails m LEFT JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text}'), {'anchor': 't'})", "option anchor has no effect: the anchor of a left outer join"),
    ("SELECT m.id FROM mails m FULL JOIN topics t ON AI.IF(PROMPT('{m.text} {t.text}'))", "2. AI left anti join"),
    ("SELECT m.id FROM mails m LEFT JOIN topics t ON NOT AI.IF(PROMPT('{m.text} {t.text}'))", "for all pairs by UDF: an AI call stands inside OR, NOT"),
    ("SELECT m.id FROM mails m JOIN topics t ON m.grp = t.grp AND (m.n = 1 OR AI.IF(PROMPT('{m.text} {t.text}')))", "note: ON of an inner join: an AI call stands inside OR"),
    ("SELECT m.id FROM mails m JOIN topics t ON AI.IF(PROMPT('{0}', m.text || t.text))", "computes with columns of both tables"),
    ("SELECT AI.IF(PROMPT('{text}')) FROM mails", "note: an AI call in a SELECT list"),
    ("SELECT grp, count_if(AI.IF(PROMPT('{text}'))) FROM mails GROUP BY grp", "note: an AI call in a SELECT list, or an expression computed before another step"),
    ("SELECT id FROM mails WHERE NOT AI.IF(PROMPT('{text}'))", "note: a condition with an AI call inside OR, NOT"),
    ("SELECT id FROM mails m LEFT JOIN topics t ON m.grp = t.grp AND AI.IF(PROMPT('{m.text}'))", "anchor: m.text; pass rate"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "words"), EXPLAINED)
def test_explain_says_how_and_why(tables, sql, words):
    text = quail_spark.explain(tables.sql(sql.replace("SELECT id FROM mails m", "SELECT m.id FROM mails m")))
    assert words in text, text
