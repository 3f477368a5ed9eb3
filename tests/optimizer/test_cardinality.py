"""Expected rows against drawing rows and matches at random."""

import random
from itertools import product

import pytest

from quail_spark.optimizer.cardinality import Cardinality, components


def draw(rng: random.Random, rows: dict[str, int], edges: dict[tuple[str, str], float]):
    """Distinct rows left per relation, distinct pairs per edge, and joined rows, in one random database."""
    matches = {
        pair: {(i, j) for i, j in product(range(rows[pair[0]]), range(rows[pair[1]])) if rng.random() < rate}
        for pair, rate in edges.items()
    }
    names = sorted(rows)
    joined = [
        dict(zip(names, chosen, strict=True))
        for chosen in product(*(range(rows[name]) for name in names))
        if all((chosen[names.index(a)], chosen[names.index(b)]) in matches[a, b] for a, b in edges)
    ]
    lives = {name: len({row[name] for row in joined}) for name in names}
    pairs = {pair: len({(row[pair[0]], row[pair[1]]) for row in joined}) for pair in edges}
    return lives, pairs, len(joined)


@pytest.mark.parametrize(
    ("rows", "edges"),
    [
        ({"a": 12, "b": 9}, {("a", "b"): 0.1}),
        ({"a": 8, "b": 5, "c": 6}, {("a", "b"): 0.15, ("b", "c"): 0.2}),
        ({"a": 5, "b": 6, "c": 4, "d": 5}, {("a", "b"): 0.2, ("a", "c"): 0.3, ("a", "d"): 0.2}),
        ({"a": 5, "b": 5, "c": 5, "d": 5}, {("a", "b"): 0.2, ("b", "c"): 0.3, ("c", "d"): 0.25}),
    ],
)
def test_trees_against_random_databases(rows, edges):
    rng, runs = random.Random(8), 1500
    found = [draw(rng, rows, edges) for _ in range(runs)]
    expected = Cardinality(rows)
    for pair, rate in edges.items():
        expected = expected.asked(pair, rate)
    assert expected.total == pytest.approx(sum(total for _, _, total in found) / runs, rel=0.1)
    for name in rows:
        assert expected.live(name) == pytest.approx(
            sum(lives[name] for lives, _, _ in found) / runs, rel=0.15, abs=0.05
        )
    for pair in edges:
        assert expected.combinations(pair) == pytest.approx(
            sum(p[pair] for _, p, _ in found) / runs, rel=0.15, abs=0.05
        )


def test_a_cycle_stays_within_its_bounds():
    rows = Cardinality({"a": 50, "b": 40, "c": 30}).asked("ab", 0.1).asked("bc", 0.1)
    closed = rows.asked("ac", 0.2)
    assert closed.total == pytest.approx(50 * 40 * 30 * 0.1 * 0.1 * 0.2)
    for name in "abc":
        assert 0 < closed.live(name) < 1.01 * rows.live(name)
    assert rows.combinations("ac") <= min(50 * 40 * 30 * 0.01, 1500)
    assert Cardinality({"a": 5, "b": 4, "c": 3}).asked("abc", 0.5).total == 30


def test_the_order_of_predicates_does_not_matter():
    rng = random.Random(9)
    for _ in range(30):
        rows = Cardinality({name: rng.randint(1, 50) for name in "abcd"})
        asked = [(rng.sample("abcd", rng.choice([1, 2, 2, 3])), rng.random()) for _ in range(5)]
        forth, back = rows, rows
        for names, rate in asked:
            forth = forth.asked(names, rate)
        for names, rate in reversed(asked):
            back = back.asked(names, rate)
        assert forth.total == pytest.approx(back.total)
        for name in "abcd":
            assert forth.live(name) == pytest.approx(back.live(name))


def test_equalities_and_outer_joins():
    orders = Cardinality({"o": 1000, "c": 50}).equal("o", "c", 1 / 50)
    assert orders.total == pytest.approx(1000)
    assert orders.live("o") == 1000 and orders.live("c") == 50
    assert orders.combinations("oc") == pytest.approx(1000)
    assert orders.asked("oc", 0.1).live("o") == pytest.approx(100)
    left = Cardinality({"a": 10, "b": 4}).asked("ab", 0.1).preserving("a", "b", "a")
    assert left.live("a") == 10
    assert left.total == pytest.approx(10 * (4 * 0.1 + 0.9**4))
    full = left.preserving("a", "b", "ab")
    assert full.live("b") == 4
    assert full.total == pytest.approx(10 * (4 * 0.1 + 0.9**4) + 4 * 0.9**10)


def test_empty_relations():
    none = Cardinality({"a": 0, "b": 5}).asked("ab", 0.5)
    assert none.total == none.live("a") == none.combinations("ab") == 0


def test_components():
    assert set(components("abcd", [frozenset("ab"), frozenset("bd")])) == {frozenset("abd"), frozenset("c")}
