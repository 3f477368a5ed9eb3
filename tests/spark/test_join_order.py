"""Several inner joins: the order that statistics make cheapest, the rows and questions of the order as written."""

import random
import re
from pathlib import Path

import pytest

import quail_spark
from quail_spark.catalyst import planned
from quail_spark.plan_statistics import PlanStatistics

from .conftest import MODEL
from .engine_calls import calls
from .oracle import answer
from .plan_outline import outline

SIZES = {"a": 30, "b": 24, "c": 4, "d": 3}
PLANS = Path(__file__).parent / "plans"


@pytest.fixture(scope="module")
def rows():
    draw = random.Random("join order")
    return {
        name: [(i, f"{name} text {draw.randint(0, size)}", draw.choice([None, *range(3)])) for i in range(size)]
        for name, size in SIZES.items()
    }


@pytest.fixture
def tables(spark, rows):
    """Tables of known sizes, each with column names of its own; `unknown_…` are the same of unknown size."""
    for name, own in rows.items():
        values = ", ".join(f"({i}, '{text}', {'NULL' if n is None else n})" for i, text, n in own)
        known = spark.sql(f"SELECT * FROM VALUES {values} AS v({name}_id, {name}_text, {name}_n)").cache()
        known.count()
        known.createOrReplaceTempView(name)
        unknown = spark.createDataFrame(own, f"{name}_id int, {name}_text string, {name}_n int").repartition(2)
        unknown.createOrReplaceTempView(f"unknown_{name}")
    return spark


def ai(words: str, *names: str, **options) -> str:
    """`AI.IF` about the texts of these tables, in this order."""
    arguments = ", ".join(f"{name}.{name}_text" for name in names)
    given = ", ".join(f"'{key}': {value!r}" for key, value in options.items())
    return f"AI.IF(PROMPT('{words}', {arguments}){f', {{{given}}}' if given else ''})"


def chain(tag: str, a: str = "a", b: str = "b", c: str = "c", **options) -> str:
    """a to b to c, with a filter on each end; the question about b and c passes least."""
    return (
        f"SELECT a_id, c_id, b_id FROM {a} a JOIN {b} b ON {ai('{0} ab {1} ' + tag, 'a', 'b', selectivity=0.6, **options)} "
        f"JOIN {c} c ON {ai('{0} bc {1} ' + tag, 'b', 'c', selectivity=0.02)} "
        f"WHERE {ai('{0} a ' + tag, 'a', selectivity=0.9)} AND {ai('{0} c ' + tag, 'c', selectivity=0.3)}"
    )


def star(tag: str) -> str:
    """b, c and d around a, one of them by an equality as well."""
    return (
        f"SELECT * FROM a JOIN b ON {ai('{0} ab {1} ' + tag, 'a', 'b', selectivity=0.9)} AND a_id < b_id "
        f"JOIN c ON a_n = c_n AND {ai('{1} ac {0} ' + tag, 'c', 'a', selectivity=0.3)} "
        f"JOIN d ON {ai('{0} ad {1} ' + tag, 'a', 'd', selectivity=0.01)} WHERE {ai('{0} b ' + tag, 'b', selectivity=0.2)}"
    )


def chain_rows(rows, tag: str) -> list:
    return [
        (a, c, b)
        for a, at, _ in rows["a"] if answer(f"{{0}} a {tag}", at)
        for b, bt, _ in rows["b"] if answer(f"{{0}} ab {{1}} {tag}", at, bt)
        for c, ct, _ in rows["c"] if answer(f"{{0}} c {tag}", ct) and answer(f"{{0}} bc {{1}} {tag}", bt, ct)
    ]  # fmt: skip


def star_rows(rows, tag: str) -> list:
    return [
        (*a, *b, *c, *d)
        for a in rows["a"]
        for b in rows["b"] if a[0] < b[0] and answer(f"{{0}} ab {{1}} {tag}", a[1], b[1]) and answer(f"{{0}} b {tag}", b[1])
        for c in rows["c"] if None not in (a[2], c[2]) and a[2] == c[2] and answer(f"{{1}} ac {{0}} {tag}", c[1], a[1])
        for d in rows["d"] if answer(f"{{0}} ad {{1}} {tag}", a[1], d[1])
    ]  # fmt: skip


def explained(spark, sql: str) -> tuple[list[str], list]:
    """The planner's notes on a query, and its operators."""
    with planned.recording() as runs:
        spark.sql(sql)._jdf.queryExecution().optimizedPlan()
    return [note for run in runs for note in run.notes], [o for run in runs for o in run.operators]


def collected(spark, sql: str) -> list:
    return sorted(map(tuple, spark.sql(sql).collect()), key=repr)


def asked(spark, tag: str) -> set:
    found = calls(spark, tag)
    assert set(found.values()) <= {1}, "a question was asked twice"
    return set(found)


def pairs_of(rows, template: str, first: str, second: str, fits=lambda a, b: True) -> set:
    return {(template, (a[1], b[1])) for a in rows[first] for b in rows[second] if fits(a, b)}


QUERIES = {"chain": (chain, chain_rows), "star": (star, star_rows)}


@pytest.mark.parametrize("name", QUERIES)
def test_plans_before_and_after(tables, monkeypatch, name):
    """The fixture has the plan for tables of unknown size, and the one for these."""
    sql = QUERIES[name][0]("plan")
    after = outline(tables.sql(sql)._jdf.queryExecution().optimizedPlan())
    monkeypatch.setattr(PlanStatistics, "rows_read", lambda self, plan: None)
    before = outline(tables.sql(sql)._jdf.queryExecution().optimizedPlan())
    assert f"before\n{before}\n\nafter\n{after}\n" == (PLANS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", QUERIES)
def test_another_order_gives_the_same_rows(tables, rows, name):
    make, expected = QUERIES[name]
    tag = f"same {name}"
    (note,), _ = explained(tables, make(tag))
    order, written = re.match(r"order of questions: (.*); written: (.*); \d+% of", note).groups()
    assert order != written
    got = collected(tables, make(tag))
    assert got == sorted(expected(rows, tag), key=repr)
    questions = asked(tables, tag)
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    assert collected(tables, make(tag)) == got
    assert questions <= asked(tables, tag)  # a UDF is asked about every pair


def test_statistics_change_the_order(tables, rows):
    """The same query over tables of unknown size runs as written, asks more, and says why. Its hints tell the truth."""
    unknown = (f"unknown_{name}" for name in "abc")
    # With an empty table Spark would skip whatever is joined to it, if it came in time.
    tag = next(tag for tag in (f"sizes {i}" for i in range(100)) if chain_rows(rows, tag))
    first, as_written = (re.sub(r"0\.\d+", "0.5", sql) for sql in (chain(tag), chain(tag, *unknown)))
    assert "order of questions: " in explained(tables, first)[0][0]
    assert "order of questions as written: it is not known how many rows a has" in explained(tables, as_written)[0]
    expected = sorted(chain_rows(rows, tag), key=repr)
    assert collected(tables, first) == expected
    fewer = asked(tables, tag)
    tables.conf.set(
        "spark.quail.model", f"{MODEL}&calls=true"
    )  # the same answers of another engine, which remembers none
    assert collected(tables, as_written) == expected
    assert len(fewer) < len(asked(tables, tag))


def test_nothing_slow_is_broadcast_without_adaptive_plans(tables):
    assert explained(tables, star("adaptive"))[0][0].startswith("order of questions: ")
    tables.conf.set("spark.sql.adaptive.enabled", "false")
    assert explained(tables, star("adaptive"))[0][0].startswith("order of questions as written (")
    assert explained(tables, chain("adaptive"))[0][0].startswith("order of questions: ")  # its partners ask nothing


def test_the_anchor_of_the_option_stands_first(tables):
    for anchor in ("a", "b"):
        _, operators = explained(tables, chain("hint", anchor=anchor))
        (predicate,) = [p for o in operators for p in o.spec.predicates if " ab " in p.template]
        assert predicate.anchor == ("ab".index(anchor),)


NOT_ORDERED = {
    "an AI call stands inside OR": f"SELECT 1 FROM a JOIN b ON {ai('{0} {1}', 'a', 'b')} JOIN c ON {ai('{0} {1}', 'b', 'c')} OR a_n = c_n",
    "an argument of an AI call computes": "SELECT 1 FROM a JOIN b ON a_n = b_n JOIN c ON AI.IF(PROMPT('{0} {1}', concat(a_text, b_text), c_text))",
}  # fmt: skip


@pytest.mark.parametrize("reason", NOT_ORDERED)
def test_what_is_not_understood_runs_as_written(tables, reason):
    notes, _ = explained(tables, NOT_ORDERED[reason])
    assert any(note.startswith(f"order of questions as written: {reason}") for note in notes), notes


BOUNDARIES = {
    "outer join": ("a LEFT JOIN b ON a_n = b_n", r"LEFT OUTER JOIN"),
    "limit": ("(SELECT * FROM a JOIN b ON a_n = b_n LIMIT 5)", r"GlobalLimit\n +LocalLimit\n +INNER JOIN"),
    "hint": ("(SELECT /*+ SHUFFLE_HASH(b) */ * FROM a JOIN b ON a_n = b_n)", r"INNER JOIN .* shuffle_hash"),
    "random column": ("(SELECT a_text, b_text, rand(7) AS r FROM a JOIN b ON a_n = b_n)", r"INNER JOIN"),
    "aggregate": (
        "(SELECT a_text, b_text FROM a JOIN b ON a_n = b_n GROUP BY a_text, b_text)",
        r"Aggregate\n +INNER JOIN",
    ),
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_no_order_across(tables, monkeypatch, name):
    """What stands below a boundary is one input: its two tables stay together, and what is above gets another order."""
    monkeypatch.setattr(PlanStatistics, "rows_read", lambda self, plan: 20)
    source, kept = BOUNDARIES[name]
    sql = (
        f"SELECT * FROM {source} JOIN c ON AI.IF(PROMPT('{{0}} bc {{1}}', b_text, c_text), {{'selectivity': 0.9}}) "
        "JOIN d ON AI.IF(PROMPT('{0} ad {1}', a_text, d_text), {'selectivity': 0.01})"
    )
    assert any(note.startswith("order of questions: ") for note in explained(tables, sql)[0])
    text = outline(tables.sql(sql)._jdf.queryExecution().optimizedPlan())
    assert text.index(" bc ") < text.index(" ad "), text
    assert re.search(kept + r".*(\n +Filter.*)?\n +a_.*(\n +Filter.*)?\n +b_", text), text


def test_equalities_alone_are_never_torn_apart(tables):
    """The cheapest question joins d, which only an equality with b connects with the rest: no product of tables appears."""
    sql = (
        f"SELECT a_id, d_id FROM a JOIN b ON a_n = b_n JOIN d ON b_n = d_n JOIN c ON {ai('{0} ac {1}', 'a', 'c')} "
        f"WHERE {ai('{0} d', 'd', selectivity=0.01)}"
    )
    plan = outline(tables.sql(sql)._jdf.queryExecution().optimizedPlan())
    products = [line.strip() for line in plan.splitlines() if re.search("JOIN( broadcast)?$", line)]
    assert products == ["CROSS JOIN broadcast"] * plan.count("ai_join ")  # anchors and blocks below an AI join


def test_renamed_columns_are_followed(tables, rows):
    """A subquery that renames is no boundary, and its names come back."""
    sql = (
        f"SELECT s.first, c_id, s.words FROM (SELECT a_id AS first, b_text AS words, a_text AS long FROM a JOIN b ON "
        f"{ai('{0} ab {1} renamed', 'a', 'b', selectivity=0.8)}) s JOIN c ON "
        "AI.IF(PROMPT('{0} bc {1} renamed', s.words, c_text), {'selectivity': 0.01}) "
        "WHERE AI.IF(PROMPT('{0} a renamed', s.long), {'selectivity': 0.9})"
    )
    (note,), _ = explained(tables, sql)
    assert note.startswith("order of questions: ")
    expected = sorted(
        (a, c, bt)
        for a, at, _ in rows["a"] if answer("{0} a renamed", at)
        for _, bt, _ in rows["b"] if answer("{0} ab {1} renamed", at, bt)
        for c, ct, _ in rows["c"] if answer("{0} bc {1} renamed", bt, ct)
    )  # fmt: skip
    assert sorted(map(tuple, tables.sql(sql).collect())) == expected
    assert tables.sql(sql).columns == ["first", "c_id", "words"]


def test_a_filter_waits_for_a_join_that_leaves_it_less(tables, rows):
    sql = (
        f"SELECT a_id, d_id FROM a JOIN d ON {ai('{0} ad {1} waits', 'a', 'd', selectivity=0.001)} "
        f"WHERE {ai('{0} a waits', 'a', selectivity=0.99)}"
    )
    (note,), operators = explained(tables, sql)
    assert note.startswith("order of questions: ")
    assert [operator.words for operator in operators] == ["join", "filter"]
    expected = [
        (a, d)
        for a, at, _ in rows["a"] if answer("{0} a waits", at)
        for d, dt, _ in rows["d"] if answer("{0} ad {1} waits", at, dt)
    ]  # fmt: skip
    assert sorted(map(tuple, tables.sql(sql).collect())) == sorted(expected)


def test_explain_fits_on_one_screen(tables):
    for name, value in {"model": "Qwen/Qwen3-4B-FP8", "estimate.device": "H200"}.items():
        tables.conf.set(f"spark.quail.{name}", value)
    text = quail_spark.explain(tables.sql(star("screen")))
    assert "order of questions: " in text and text.count("AI join") == 3
    lines = text.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 132, text
