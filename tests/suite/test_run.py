"""The suite's command: what it prints and writes, what it leaves out, and that one failing query does not end the others."""

import argparse
import json
import random

import pytest
import run
from comparison import Suite
from run import Results, engine_of, run_all
from suite_queries import chosen_queries
from suite_tables import random_tables

SEED = random.randrange(1 << 30)


@pytest.fixture
def arguments(tmp_path):
    """As for `run.py --scripted --json …`, over few rows."""
    given = {"scripted": True, "tokenizer": None, "layout": "document_first", "only": None, "budget": None}
    return argparse.Namespace(**given, json=tmp_path / "suite.json")


def suite_of(arguments, tmp_path) -> Suite:
    evaluator, context = engine_of(arguments, tmp_path)
    return Suite(evaluator, random_tables(SEED, 0.008), context, by_clock=False)


def ran(arguments, suite) -> tuple[Results, list[str]]:
    results = Results(arguments)
    return results, [outcome.query.name for outcome in run_all(suite, results)]


def test_every_query_has_its_figures(arguments, tmp_path):
    results, names = ran(arguments, suite_of(arguments, tmp_path))
    assert names == [query.name for query in chosen_queries(None)] and len(names) == 35
    written = json.loads(arguments.json.read_text())
    assert [row["query"]["name"] for row in written["queries"]] == names
    assert not written["failed"] and not written["left_out"]
    for row, outcome in zip(written["queries"], results.outcomes, strict=True):
        chosen = row["chosen"]
        assert chosen["fresh"] > 0 and chosen["answers"] > 0 and chosen["seconds"] > 0 and chosen["expected_s"] > 0
        assert 0 < row["share_of_light"] <= 1
        assert row["ratio"] == (row["written"]["seconds"] / chosen["seconds"] if row["written"] else 1)
        assert run.line(outcome).startswith(row["query"]["name"])
        assert "AI step" in row["plan"].splitlines()[0]
    assert len(written["verdicts"]) == 3


def test_a_query_that_fails_is_told_and_the_rest_runs(arguments, tmp_path, monkeypatch, capsys):
    suite = suite_of(arguments, tmp_path)
    outcome_of = suite.outcome

    def outcome(prepared):
        if prepared.query.name == "LEP-3":
            raise RuntimeError("out of memory")
        return outcome_of(prepared)

    monkeypatch.setattr(suite, "outcome", outcome)
    arguments.only = "LEP"
    results, names = ran(arguments, suite)
    assert names == ["LEP-1", "LEP-2", "LEP-4", "LEP-5"]
    assert results.failed == {"LEP-3": "RuntimeError: out of memory"}
    assert json.loads(arguments.json.read_text())["failed"] == results.failed
    assert "LEP-3    FAILED: RuntimeError: out of memory" in capsys.readouterr().out


def test_a_budget_leaves_out_the_dearest(arguments, tmp_path):
    suite = suite_of(arguments, tmp_path)
    expected = {query.name: suite.prepared(query).expected_s for query in chosen_queries(None)}
    dearest = max(expected.values())
    arguments.budget = dearest * 0.99  # by the clock these runs take longer than the expected seconds of a card
    results, names = ran(arguments, suite)
    assert names == sorted(names, key=expected.get)
    assert set(names) | results.left_out.keys() == expected.keys() and results.left_out
    assert all(expected[name] <= dearest * 0.99 for name in names)
    assert json.loads(arguments.json.read_text())["left_out"] == results.left_out
