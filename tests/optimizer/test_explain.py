"""What people see: screens kept as text, and their size."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from make import context, relation
from plan_text import read_plan, read_tables, sections
from test_semantics import random_plan

from quail_spark.optimizer.device import cpu
from quail_spark.optimizer.estimate import PlanEstimate, estimate_plan
from quail_spark.optimizer.explain import amount, count, duration, explain_plan, percent
from quail_spark.optimizer.logical import AiFilter, AiPredicate
from quail_spark.optimizer.rules import optimize

HERE = Path(__file__).parent


def planned(name: str) -> PlanEstimate:
    given = sections(HERE / "fixtures" / f"{name}.txt")
    plan, settings = read_plan(given["before"], read_tables(given["relations"])), context(price=4.0)
    return estimate_plan(optimize(plan, settings), settings)


@pytest.mark.parametrize("name", ["imdb_5", "fev_9", "semi"])
def test_screens(name):
    text = explain_plan(planned(f"optimize-{name}"))
    assert text + "\n" == (HERE / "screens" / f"{name}.txt").read_text(encoding="utf-8")


def test_three_joins_with_a_filter_on_each_input_fit_on_a_screen():
    estimate = planned("optimize-fev_9")
    assert len(estimate.operators) == 7
    lines = explain_plan(estimate).splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


def test_no_line_is_too_long_and_every_question_is_shown():
    for seed in range(25):
        settings = context(price=123.0, layout="auto")
        estimate = estimate_plan(optimize(random_plan(random.Random(seed)), settings), settings)
        text = explain_plan(estimate)
        for line in text.splitlines():
            assert len(line) <= 80, line
        for operator in estimate.operators:
            for question in operator.questions:
                assert question.predicate.words[:40] in text


def test_what_was_asked_under_another_name_is_said():
    text = explain_plan(planned("order_joins-aliases"))
    assert text.count("100% of them known from another name of the table") == 1
    assert "5,000 r1 x 12 a1 = 60.0k pairs" in text and "119k answers" in text


def test_what_is_assumed_is_said():
    settings = context()
    settings = replace(settings, roofline=replace(settings.roofline, device=cpu(2), precision="auto"))
    plan = AiFilter((AiPredicate.of("{r.body} is long"),), relation("r", 10))
    text = explain_plan(estimate_plan(optimize(plan, settings), settings))
    assert "device speed assumed" in text and "TRUE 20% [assumed]" in text and "r.body 200 [assumed]" in text
    assert "$" not in text
    assert explain_plan(estimate_plan(plan.child, settings)) == "No AI operators in this plan."


def test_numbers():
    assert [duration(s) for s in (0, 0.004, 0.996, 8.06, 99.6, 400, 7000)] == [
        "0.00 s",
        "<0.01 s",
        "1.0 s",
        "8.1 s",
        "100 s",
        "7 min",
        "1.9 h",
    ]
    assert [amount(n) for n in (0.25, 999, 12_340, 999_600, 44.7e6, 2.1e9)] == [
        "0.2",
        "999",
        "12.3k",
        "1.0M",
        "44.7M",
        "2.1G",
    ]
    assert [count(n) for n in (-1e-12, 3.0000001, 0.31, 9.96, 5000)] == ["0", "3", "0.3", "10", "5,000"]
    assert [percent(s) for s in (0, 0.0022, 0.0999, 0.5, 0.0001)] == ["0%", "0.2%", "10%", "50%", "<0.1%"]
