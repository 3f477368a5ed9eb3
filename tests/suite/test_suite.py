"""Every query of the suite: planned and in written order it gives the rows of plain Python, and asks nothing twice."""

import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plain import Plain, predicates, small_tables
from plan_runner import run_plan
from sql_plan import read_sql
from suite_engines import Gate, counting_engine
from suite_queries import read_queries
from suite_tables import random_tables, read_tables
from written_order import written_order

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator, scripted_answer
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import find_device
from quail_spark.optimizer.errors import ConfigError, SqlError
from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.logical import AiJoin, nodes
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.rules import optimize
from quail_spark.sql import rewrite

QUERIES = read_queries()
CONTEXT = PlanContext(Roofline(known_model("qwen3-4b"), find_device("H200"), "fp8"))
SEED = random.randrange(1 << 30)


def ordered(rows) -> list:
    return sorted(tuple(sorted(row.items())) for row in rows)


def as_dicts(rows) -> list[dict]:
    names = list(rows)
    return [dict(zip(names, numbers, strict=True)) for numbers in zip(*(rows[n].tolist() for n in names), strict=True)]


def test_all_queries_are_there():
    counts = Counter(query.group for query in QUERIES.values())
    assert counts == {"imdb": 10, "bio": 4, "fev": 10, "lep": 5, "agent": 6}
    assert {"R-1", "R-2", "R-3", "R-6", "AGENT-1", "AGENT-2"} <= QUERIES.keys()


@pytest.mark.parametrize("name", QUERIES)
def test_the_connector_reads_the_same_questions(name):
    """The statements are the connector's SQL: its front end finds each call, with the same template and columns."""
    written = rewrite(QUERIES[name].sql).replace("`", "")
    found = predicates(read_sql(QUERIES[name].sql, random_tables(1, 0.001)).plan)
    calls = re.findall(r"ai_if\(prompt\('((?:[^']|'')*)', ([\w., ]+)\), map\('selectivity', '([\d.]+)'\)\)", written)
    assert Counter((t, columns, float(rate)) for t, columns, rate in calls) == Counter(
        (p.template, ", ".join(map(str, p.arguments)), p.selectivity) for p in found
    )


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("order", ["planned", "written"])
def test_rows_and_calls(name, order):
    rng = random.Random(f"{SEED} {name}")
    print("seed", SEED)
    query = read_sql(QUERIES[name].sql, small_tables(rng))
    rate = rng.choice([0.3, 0.6, 0.9])
    plain = Plain(query.plan, query.tables, rate)
    evaluator = ScriptedEvaluator(EngineConfig(f"scripted://hash?rate={rate}"))
    context = replace(CONTEXT, layout=rng.choice(["document_first", "literal"]))
    plan = optimize(query.plan, context) if order == "planned" else written_order(query.plan, context)
    rows, counts = run_plan(plan, query.tables, evaluator.open, tasks=rng.choice([1, 3]))
    assert ordered(as_dicts(rows)) == ordered(plain.rows)
    assert set(evaluator.calls) <= plain.prompts
    assert all(times == 1 for times in evaluator.calls.values())
    assert sum(c.evaluations for c in counts) == len(evaluator.calls)


@pytest.mark.parametrize("name", QUERIES)
def test_planned_is_estimated_as_no_dearer_than_written(name):
    query = read_sql(QUERIES[name].sql, random_tables(1, 0.01))
    assert len(predicates(query.plan)) == sum(1 for word in QUERIES[name].sql.split() if word.startswith("AI.IF("))
    planned = estimate_plan(optimize(query.plan, CONTEXT), CONTEXT)
    written = estimate_plan(written_order(query.plan, CONTEXT), CONTEXT)
    assert planned.seconds <= written.seconds * 1.0001
    assert planned.rows_out == pytest.approx(written.rows_out, rel=1e-6)


def test_ends_of_queries():
    tables = small_tables(random.Random(SEED))
    snapshots = tables["snapshots"].to_pylist()
    rows = {"s": np.arange(len(snapshots))}
    limited = sorted(snapshots, key=lambda s: (-s["characters"], s["run"], s["turn"]))[10:20]
    assert read_sql(QUERIES["R-2"].sql, tables).result(rows) == [(s["run"], s["turn"]) for s in limited]
    assert sorted(read_sql(QUERIES["R-3"].sql, tables).result(rows)) == [("run0",), ("run1",), ("run2",)]
    some = {"s": np.array([0, 1, 3, 4, 6])}
    expected = {
        run: (len(own), min(s["turn"] for s in own), max(s["characters"] for s in own))
        for run in ("run0", "run1")
        for own in [[snapshots[i] for i in (0, 1, 3, 4, 6) if snapshots[i]["run"] == run]]
    }
    assert {run: rest for run, *rest in read_sql(QUERIES["R-6"].sql, tables).result(some)} == {
        run: list(values) for run, values in expected.items()
    }
    assert read_sql(QUERIES["R-6"].sql, tables).result({"s": np.arange(0)}) == []
    late = read_sql(QUERIES["R-1"].sql, tables).tables["s"]
    assert late.to_pylist() == [s for s in snapshots if s["turn"] >= 10]


def test_a_query_by_hand():
    tables = small_tables(random.Random(SEED))
    query = read_sql(QUERIES["FEV-10"].sql, tables)
    evaluator = ScriptedEvaluator(EngineConfig("scripted://hash?rate=0.7"))
    rows, _ = run_plan(optimize(query.plan, CONTEXT), query.tables, evaluator.open)

    def true(template: str, *texts: str | None) -> bool:
        return None not in texts and scripted_answer(template, texts, 0.7)

    claims, passages = ({row["id"]: row for row in tables[name].to_pylist()} for name in ("claims", "passages"))
    expected = [
        (c, e)
        for c, e in zip(*tables["gold"].to_pydict().values(), strict=True)
        if c in claims and e in passages
        if true("{0} is about a person", claims[c]["claim"])
        if true("the subject of {0} is a person", passages[e]["text"])
        if true("the claim {0} is supported by the passage {1}", claims[c]["claim"], passages[e]["text"])
    ]
    assert sorted(query.result(rows)) == sorted(expected)


def test_counted_work_is_the_engines():
    query = read_sql(QUERIES["IMDB-3"].sql, random_tables(SEED, 0.004))
    evaluator = counting_engine()
    rates = {p.template: p.selectivity for p in predicates(query.plan)}
    plan = optimize(query.plan, CONTEXT)
    rows, counts = run_plan(plan, query.tables, Gate(evaluator, rates).open)
    work = evaluator.runner.work
    assert work.fresh == sum(c.fresh_tokens for c in counts) and work.answers == sum(c.evaluations for c in counts)
    reviews, aspects = query.tables["r"]["review"].to_pylist(), query.tables["a"]["description"].to_pylist()
    template = predicates(query.plan)[0].template
    discussed = {(r, a) for r in set(rows["r"].tolist()) for a in range(12)}
    assert set(zip(rows["r"].tolist(), rows["a"].tolist(), strict=True)) == {
        (r, a) for r, a in discussed if scripted_answer(template, (reviews[r], aspects[a]), 0.29)
    }
    again = Gate(evaluator, rates, in_order=True)
    run_plan(written_order(query.plan, CONTEXT), query.tables, again.open)
    assert evaluator.runner.work.fresh == work.fresh  # the plans are the same, and nothing was remembered
    assert evaluator.runner.page_pool.free_pages == evaluator.runner.page_pool.total_pages


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT r.id FROM reviews r WHERE AI.IF(PROMPT('{0} is good', r.review))",
        "SELECT r.id FROM reviews r WHERE r.id LIKE 'a%'",
        "SELECT r.id FROM reviews r LEFT JOIN aspects a ON AI.IF(PROMPT('{r.review} is {a.aspect}'))",
        "SELECT r.id FROM reviews r JOIN aspects r ON r.id = r.id",
        "SELECT r.id FROM elsewhere r",
        "SELECT COUNT(*) FROM reviews r",
        "SELECT AI.SCORE(PROMPT('{r.review} is good')) FROM reviews r",
        "DELETE FROM reviews",
        "SELECT r.id FROM reviews r JOIN aspects a ON AI.IF(PROMPT('{r.review} is {a.aspect}')) WHERE r.id = a.id",
    ],
)
def test_other_sql_is_refused(sql):
    with pytest.raises(SqlError, match="accepted: "):
        read_sql(sql, small_tables(random.Random(SEED)))


def test_other_joins_are_refused():
    query = read_sql(QUERIES["FEV-2"].sql, small_tables(random.Random(SEED)))
    (join,) = (node for node in nodes(query.plan) if isinstance(node, AiJoin))
    evaluator = ScriptedEvaluator(EngineConfig("scripted://hash"))
    with pytest.raises(ConfigError, match="accepted here: inner, planned"):
        run_plan(join, query.tables, evaluator.open)


def test_parquet_tables(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    sources = small_tables(random.Random(SEED))
    turns = pa.table({"trajectory_id": ["a", "b", "a"], "turn_index": [1, 0, 0], "text": ["two", "x", "one "]})
    golds = pa.table({"gold_passage_ids": [["passages1"]] * sources["claims"].num_rows})
    claims = sources["claims"].append_column("gold_passage_ids", golds["gold_passage_ids"])
    files = {
        name: sources[name] for name in ("reviews", "aspects", "reaction_terms", "passages", "contexts", "citations")
    }
    files |= {
        "claims": claims,
        "turns": turns,
        "reports_fulltext": sources["reports"],
        "abstracts": sources["case_reports"],
    }
    for name, table in files.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    tables = read_tables(tmp_path, "dev", 1.0, {name: str(tmp_path / f"{name}.parquet") for name in files})
    assert tables["snapshots"].to_pylist() == [
        {"run": "a", "turn": 0, "characters": 4, "history": "one "},
        {"run": "a", "turn": 1, "characters": 7, "history": "one two"},
        {"run": "b", "turn": 0, "characters": 1, "history": "x"},
    ]
    assert tables["passages"]["id"][0].as_py() == "passages1"
    assert tables["gold"].num_rows == sources["claims"].num_rows
    assert tables["reports"].num_rows == sources["reports"].num_rows + sources["case_reports"].num_rows


@pytest.mark.parametrize("name", ["IMDB-4", "IMDB-9", "IMDB-10", "BIO-4", "FEV-6", "FEV-9", "AGENT-1"])
def test_estimates_are_close_to_what_the_engine_does(name):
    query = read_sql(QUERIES[name].sql, random_tables(3, 0.06))
    evaluator = counting_engine()
    plan = optimize(query.plan, CONTEXT)
    run_plan(plan, query.tables, Gate(evaluator, {p.template: p.selectivity for p in predicates(query.plan)}).open)
    expected, counted = estimate_plan(plan, CONTEXT), evaluator.runner.work
    assert expected.work.fresh == pytest.approx(counted.fresh, rel=0.25)
    assert expected.seconds == pytest.approx(CONTEXT.roofline(counted), rel=0.25)
