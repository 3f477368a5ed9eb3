"""The dynamic program against every order, and the orders it finds for queries of known shape."""

import random
from dataclasses import replace

import pytest
from make import H200, random_filter, random_join, random_tables, table

from quail_spark.optimizer import joins
from quail_spark.optimizer.cardinality import Cardinality
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.joins import JoinProblem, plan_joins
from quail_spark.optimizer.logical import AiPredicate
from quail_spark.optimizer.repeats import asked_before
from quail_spark.optimizer.steps import make_step


def problem(tables, predicates, equal=(), layout="document_first") -> JoinProblem:
    steps = [make_step(p, tables, layout, PlanContext(H200)) for p in predicates]
    start = Cardinality({name: stats.rows.value for name, stats in tables.items()})
    blocks = [frozenset(name) for name in tables]
    for a, b, share in equal:
        start = start.equal(a, b, share)
        together = frozenset().union(*(block for block in blocks if block & {a, b}))
        blocks = [block for block in blocks if not block & together] + [together]
    return JoinProblem(steps, blocks, start, H200)


def cheapest(problem: JoinProblem) -> float:
    """By trying every left-deep order, anchor and choice of what to keep, one after the other."""

    def passed(waiting) -> dict:
        found: dict[str, list] = {}
        for number, step in enumerate(problem.steps):
            if number not in waiting and len(step.relations) == 1:
                found.setdefault(step.relations[0], []).append((step.question, step.rate))
        return found

    def go(waiting, rows, joined, held, asked=()) -> float:
        if not waiting:
            return 0.0
        touched = {n: {b for b in problem.blocks if b & set(problem.steps[n].relations)} for n in waiting}
        allowed = [n for n in waiting if len(touched[n]) < 2 or len(touched[n] - joined) <= (1 if joined else 2)]
        best = float("inf")
        for number in allowed:
            step, rest = problem.steps[number], [n for n in waiting if n != number]
            after = joined | touched[number] if len(touched[number]) > 1 else joined
            for anchor in step.shapes:
                document, now = step.document(anchor), step.asking(rows, passed(waiting))
                new = 1 - asked_before([each for prompt, each in asked if prompt == step.prompts[anchor]], now)
                noted = (*asked, (step.prompts[anchor], now))
                for keep in (True, False):
                    work = step.work(rows, anchor, held is not None and held == document, keep, problem.chunk) * new
                    there = document if keep and new > 0.5 else None
                    best = min(best, H200(work) + go(rest, step.after(rows), after, there, noted))
        return best

    return go(list(range(len(problem.steps))), problem.start, frozenset(), None)


def random_problem(rng: random.Random) -> JoinProblem:
    names = "abcd"[: rng.randint(2, 4)]
    tables = random_tables(rng, names)
    pairs = [(rng.choice(names[:i]), names[i]) for i in range(1, len(names))]  # a random tree
    if rng.random() < 0.3:
        pairs.append(tuple(rng.sample(names, 2)))  # a cycle, or two questions about one pair
    predicates = [random_join(rng, a, b, number) for number, (a, b) in enumerate(pairs)]
    predicates += [random_filter(rng, rng.choice(names), n) for n in range(rng.randint(0, 4 - len(pairs)))]
    rng.shuffle(predicates)
    equal = [(*pairs[0], 0.1)] if rng.random() < 0.3 else []
    return problem(tables, predicates, equal, rng.choice(["document_first", "literal"]))


@pytest.mark.parametrize("seed", range(40))
def test_no_order_is_cheaper(seed):
    given = random_problem(random.Random(seed))
    found = plan_joins(given)
    assert found.exact
    assert sorted(move.step for move in found.moves) == list(range(len(given.steps)))
    assert found.cost == pytest.approx(cheapest(given), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_no_order_is_cheaper_where_aliases_ask_the_same(seed):
    rng = random.Random(seed)
    tables = {n: replace(stats, source=None) for n, stats in random_tables(rng, "abcd").items()}
    for one, other in rng.sample(["ab", "cd", "ac"], 2):
        tables[other] = replace(tables[one], source=tables[one].source or one)
        tables[one] = replace(tables[one], source=tables[other].source)
    words = ["{%s.t} goes with {%s.t}", "{%s.t} contradicts {%s.t}", "{%s.t} is short"]
    asked = [words[0] % ("a", "c"), words[0] % ("b", "d"), words[1] % ("b", "c"), words[2] % "a", words[2] % "b"]
    chosen = asked[:3] + rng.sample(asked[3:], rng.randint(0, 2))
    rng.shuffle(chosen)
    given = problem(tables, [AiPredicate.of(each, rng.choice([0.01, 0.4, 0.8])) for each in chosen])
    assert plan_joins(given).cost == pytest.approx(cheapest(given), rel=1e-6)


def test_the_cost_is_that_of_the_moves():
    given = random_problem(random.Random(77))
    found, rows, held = plan_joins(given), given.start, None
    for move, cost in zip(found.moves, found.costs, strict=True):
        step = given.steps[move.step]
        document = step.document(move.anchor)
        work = step.work(rows, move.anchor, held is not None and held == document, move.keep, given.chunk)
        assert H200(work) == pytest.approx(cost, rel=1e-6)
        rows, held = step.after(rows), document if move.keep else None


def shown(problem: JoinProblem) -> list[tuple[str, str]]:
    return [(problem.steps[m.step].predicate.words, m.anchor) for m in plan_joins(problem).moves]


def test_a_star_keeps_its_anchor():
    tables = {"r": table(500, t=4000), "a": table(40, t=8), "b": table(60, t=8)}
    star = problem(
        tables, [AiPredicate.of("{a.t} is in {r.t}", 0.9), AiPredicate.of("{b.t} is the topic of {r.t}", 0.9)]
    )
    assert [anchor for _, anchor in shown(star)] == ["r", "r"]
    found = plan_joins(star)
    assert found.costs[1] < found.costs[0]


def test_a_chain_changes_anchor():
    tables = {"r": table(300, t=800), "a": table(30, t=8), "s": table(300, t=800), "b": table(30, t=8)}
    words = ["{r.t} discusses {a.t}", "{s.t} also discusses {a.t}", "{s.t} praises {b.t}"]
    anchors = dict(shown(problem(tables, [AiPredicate.of(w, 0.2) for w in words])))
    assert anchors == dict(zip(words, "rss", strict=True))


def test_a_hint_is_obeyed():
    tables = {"r": table(500, t=4000), "a": table(40, t=8)}
    assert shown(problem(tables, [AiPredicate.of("{r.t} discusses {a.t}", 0.1)]))[0][1] == "r"
    assert shown(problem(tables, [AiPredicate.of("{r.t} discusses {a.t}", 0.1, "a")]))[0][1] == "a"


def test_a_selective_filter_comes_before_the_join_and_keeps_its_documents():
    tables = {"r": table(500, t=4000), "a": table(40, t=8)}
    given = problem(tables, [AiPredicate.of("{r.t} discusses {a.t}", 0.5), AiPredicate.of("{r.t} is long", 0.1)])
    found = plan_joins(given)
    assert [(m.step, m.keep) for m in found.moves] == [(1, True), (0, True)]


def test_a_dear_filter_waits_for_a_join_that_leaves_few_rows():
    tables = {"r": table(100_000, t=20, u=3000), "a": table(3, t=8)}
    given = problem(tables, [AiPredicate.of("{r.u} is long", 0.9), AiPredicate.of("{r.t} discusses {a.t}", 0.001)])
    assert [m.step for m in plan_joins(given).moves] == [1, 0]


def test_the_beam_is_close_to_the_best(monkeypatch):
    rng = random.Random(10)
    for _ in range(8):
        given = random_problem(rng)
        best = plan_joins(given)
        monkeypatch.setattr(joins, "EXACT", 0)
        monkeypatch.setattr(joins, "BEAM", 4)
        found = plan_joins(given)
        monkeypatch.undo()
        assert not found.exact
        assert best.cost * (1 - 1e-6) <= found.cost <= best.cost * 1.25


def test_two_queries_side_by_side_are_planned_apart():
    tables = {name: table(20, t=50) for name in "abcd"}
    given = problem(tables, [AiPredicate.of("{a.t} or {b.t}", 0.1), AiPredicate.of("{c.t} or {d.t}", 0.1)])
    assert len(plan_joins(given).moves) == 2
