"""Estimates against counting questions in random databases, against the planner's own costs, and by hand."""

import random
from importlib import import_module

import pytest
from make import H200, context, relation
from test_semantics import random_plan

from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.joins import plan_joins
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Project, Relation, nodes
from quail_spark.optimizer.rules import optimize
from quail_spark.optimizer.work import Length, ask_in_turn


class Counter:
    """Runs inner joins and filters over random answers and counts the distinct questions of each predicate."""

    def __init__(self, rng: random.Random):
        self._rng, self.asked = rng, {}

    def passes(self, predicate: AiPredicate, row: dict) -> bool:
        known = self.asked.setdefault(predicate.words, {})
        name = tuple(row[r] for r in predicate.relations)
        if name not in known:
            known[name] = self._rng.random() < predicate.selectivity
        return known[name]

    def run(self, plan: Plan) -> list[dict]:
        if isinstance(plan, Relation):
            return [{plan.name: i} for i in range(int(plan.stats.rows.value))]
        if isinstance(plan, AiFilter):
            rows = self.run(plan.child)
        else:
            rows = [a | b for a in self.run(plan.left) for b in self.run(plan.right)]
        return [row for row in rows if all(self.passes(p, row) for p in plan.predicates)]


def chain() -> Plan:
    a, b, c = relation("a", 12, t=30), relation("b", 8, t=30), relation("c", 9, t=30)
    below = AiJoin(
        "inner", AiFilter((AiPredicate.of("{a.t} is 1", 0.6),), a), b, (), (AiPredicate.of("{a.t} 2 {b.t}", 0.25),)
    )
    joined = AiJoin("inner", below, c, (), (AiPredicate.of("{b.t} 3 {c.t}", 0.3), AiPredicate.of("4 {b.t} {c.t}", 0.5)))
    return AiFilter((AiPredicate.of("{a.t} is 5", 0.5), AiPredicate.of("{c.t} is 6", 0.5)), joined)


def test_questions_asked_against_random_databases():
    planned = optimize(chain(), context())
    estimates = estimate_plan(planned, context())
    runs, totals, rows, rng = 1500, {}, 0, random.Random(3)
    for _ in range(runs):
        counter = Counter(rng)
        rows += len(counter.run(planned))
        for words, answers in counter.asked.items():
            totals[words] = totals.get(words, 0) + len(answers)
    questions = [q for operator in estimates.operators for q in operator.questions]
    assert len(questions) == 6
    for question in questions:
        assert question.asked == pytest.approx(totals[question.predicate.words] / runs, rel=0.15), (
            question.predicate.words
        )
    assert estimates.rows_out == pytest.approx(rows / runs, rel=0.15)


def test_a_group_of_joins_costs_what_its_search_said(monkeypatch):
    costs = []

    def noted(problem):
        found = plan_joins(problem)
        costs.append(found.cost)
        return found

    monkeypatch.setattr(import_module("quail_spark.optimizer.rules.order_joins"), "plan_joins", noted)
    planned = optimize(chain(), context())
    assert estimate_plan(planned, context()).seconds == pytest.approx(costs[-1], rel=1e-6)


def test_one_filter_by_hand():
    predicates = (AiPredicate.of("{r.t} is a"), AiPredicate.of("{r.t} is long", 0.5))
    settings = context(observed={"{r.t} is a": (980, 880)}, price=3.6)
    estimate = estimate_plan(optimize(AiFilter(predicates, relation("r", 1000, t=300)), settings), settings)
    (operator,) = estimate.operators
    assert [q.predicate.words for q in operator.questions] == ["{r.t} is long", "{r.t} is a"]
    assert [q.asked for q in operator.questions] == [1000, 500]
    rate = (0.2 * 20 + 880) / 1000
    assert operator.rows_out == pytest.approx(500 * rate)
    assert operator.questions[1].rate.source == "980 answers before"
    document = Length(300 + 10 / 4, 1.43 * 300**2 + 2 * 300 * 10 / 4 + (10 / 4) ** 2)
    rests = [
        Length.exactly(5 + 7 / 4 + (len("\n\nQUESTION: the document is " + end) + 22) / 4) for end in ("long", "a")
    ]
    work = ask_in_turn(1000, document, rests, [0.5, rate], shared=True)
    assert operator.work.fresh == pytest.approx(work.fresh)
    assert estimate.seconds == pytest.approx(H200(work))
    assert estimate.cost == pytest.approx(estimate.seconds / 1000)


def test_shares_add_up_and_nothing_is_faster_than_light():
    for seed in range(30):
        plan, settings = random_plan(random.Random(seed)), context()
        estimate = estimate_plan(optimize(plan, settings), settings)
        asked = [n for n in nodes(plan) if isinstance(n, AiFilter) or (isinstance(n, AiJoin) and n.predicates)]
        assert bool(estimate.operators) == bool(asked)
        assert estimate.cost is None
        assert [operator.number for operator in estimate.operators] == list(range(1, len(estimate.operators) + 1))
        for operator in estimate.operators:
            assert 0 < operator.light < operator.seconds.total
        if asked:
            assert sum(map(estimate.share, estimate.operators)) == pytest.approx(1)


def test_light_computes_each_document_once():
    a, b, c = relation("a", 50, t=900), relation("b", 20, t=900), relation("c", 20, t=5)
    inner = AiJoin("inner", a, b, (), (AiPredicate.of("{a.t} 1 {b.t}", 0.9, "a"),), "a")
    between = AiFilter((AiPredicate.of("{b.t} is 2", 0.9),), inner, ("b",))
    plan = Project((), AiJoin("inner", between, c, (), (AiPredicate.of("{a.t} 3 {c.t}", 0.9, "a"),), "a"))
    first, _, again = estimate_plan(plan, context()).operators
    tokens = {o.number: o.questions[0].work.fresh for o in (first, again)}
    light = H200.speed_of_light()
    assert again.light < light(again.work) * 0.7
    assert first.light == pytest.approx(light(first.work))
    assert tokens[again.number] > 45 * 900
