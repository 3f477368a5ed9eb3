"""The order of predicates against a simulation of rows and against every order."""

import random
from itertools import permutations

import pytest

from quail_spark.optimizer.order import best_order, expected_cost
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate
from quail_spark.optimizer.statistics import PassRates


def spec(*selectivity: float | None, name: str = "f") -> OperatorSpec:
    predicates = [Predicate(f"{{0}} is {i}", (Argument(0),), selectivity=s) for i, s in enumerate(selectivity)]
    return OperatorSpec(name, "filter", tuple(predicates))


def test_expected_cost_is_what_rows_pay():
    rng = random.Random(1)
    rates, own, documents = [0.3, 0.8, 0.5], [10, 20, 30], [("a", 100), ("b", 50), ("a", 100)]
    order, total, rows = (1, 0, 2), 0, 40_000
    for _ in range(rows):
        seen = set()
        for p in order:
            name, tokens = documents[p]
            total += own[p] + (0 if name in seen else tokens)
            seen.add(name)
            if rng.random() >= rates[p]:
                break
    assert total / rows == pytest.approx(expected_cost(order, rates, own, documents), rel=0.02)


def test_selective_and_cheap_first():
    same = [("doc", 1000)] * 3
    assert best_order([0.9, 0.1, 0.5], [10, 10, 10], same) == (1, 2, 0)
    assert best_order([0.5, 0.5, 0.5], [30, 10, 20], same) == (1, 2, 0)


def test_a_long_document_comes_late():
    assert best_order([0.5, 0.6], [10, 10], [("body", 5000), ("title", 20)]) == (1, 0)


def test_many_predicates_go_by_cost_per_rejected_row():
    rates = [0.1 * i for i in range(1, 9)]
    assert best_order(rates[::-1], [10] * 8, [("doc", 50)] * 8) == tuple(range(7, -1, -1))


def test_no_order_is_cheaper():
    rng = random.Random(2)
    for _ in range(300):
        count = rng.randint(1, 6)
        costs = {name: rng.choice([0, 10, 300, 5000]) for name in "abc"}
        documents = [(name, costs[name]) for name in rng.choices("abc", k=count)]
        own = [rng.randint(1, 200) for _ in range(count)]
        rates = [rng.choice([0.0, 1.0, rng.random(), rng.random()]) for _ in range(count)]
        best = min(expected_cost(order, rates, own, documents) for order in permutations(range(count)))
        chosen = best_order(rates, own, documents)
        assert sorted(chosen) == list(range(count))
        assert expected_cost(chosen, rates, own, documents) == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_a_document_may_be_worth_it_for_two_predicates_together():
    rates, own = [0.6, 0.6, 0.8], [1, 1, 1]
    documents = [("body", 100), ("body", 100), ("title", 60)]
    assert best_order(rates, own, documents) == (0, 1, 2)


def test_hints_start_and_observations_take_over():
    pass_rates, operator = PassRates(), spec(0.9, None)
    assert pass_rates.estimate(operator) == [0.9, 0.2]
    pass_rates.observe(operator, [1000, 1000], [10, 700])
    first, second = pass_rates.estimate(operator)
    assert first < 0.05 and 0.65 < second < 0.7
    assert pass_rates.estimate(spec(0.9, None, name="other")) == [0.9, 0.2]
