"""Optimised plans give the rows of the plans as written: both are run over random rows with scripted answers."""

import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from make import context, random_tables

from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.logical import (
    AiFilter,
    AiJoin,
    AiPredicate,
    Plan,
    Project,
    Relation,
    TextRef,
    nodes,
    relations,
)
from quail_spark.optimizer.rules import optimize
from quail_spark.optimizer.rules.choose_anchors import choose_anchors

ROWS = 5


class Runner:
    """Runs a plan row by row. A row is the number of each relation's row, None where an outer join found no partner."""

    def __init__(self, seed: int):
        self._seed = seed

    def _random(self, *what) -> float:
        return random.Random(f"{self._seed} {what}").random()

    def passes(self, predicate: AiPredicate, row: dict) -> bool:
        numbers = [row[name] for name in sorted(predicate.relations)]
        return None not in numbers and self._random(predicate.words, numbers) < 0.6

    def value(self, ref: TextRef, row: dict) -> int | None:
        number = row[ref.relation]
        return None if number is None else int(self._random(ref, number) * 3)

    def run(self, plan: Plan) -> list[dict]:
        if isinstance(plan, Relation):
            return [{plan.name: number} for number in range(ROWS)]
        if isinstance(plan, Project):
            return self.run(plan.child)
        if isinstance(plan, AiFilter):
            return [row for row in self.run(plan.child) if all(self.passes(p, row) for p in plan.predicates)]
        return self.join(plan, self.run(plan.left), self.run(plan.right))

    def join(self, plan: AiJoin, left: list[dict], right: list[dict]) -> list[dict]:
        def fits(a: dict, b: dict) -> bool:
            row = a | b
            keys = all((x := self.value(k, row)) is not None and x == self.value(other, row) for k, other in plan.keys)
            return keys and all(self.passes(p, row) for p in plan.predicates)

        matches = [(i, j) for i, j in product(range(len(left)), range(len(right))) if fits(left[i], right[j])]
        matched_left, matched_right = {i for i, _ in matches}, {j for _, j in matches}
        if plan.kind in ("semi", "anti"):
            return [row for i, row in enumerate(left) if (i in matched_left) == (plan.kind == "semi")]
        found = [left[i] | right[j] for i, j in matches]
        if plan.kind in ("left", "full"):
            nothing = dict.fromkeys(relations(plan.right))
            found += [row | nothing for i, row in enumerate(left) if i not in matched_left]
        if plan.kind in ("right", "full"):
            nothing = dict.fromkeys(relations(plan.left))
            found += [row | nothing for j, row in enumerate(right) if j not in matched_right]
        return found


def random_plan(rng: random.Random, aliases: bool = False) -> Plan:
    """`aliases`: two names of one table, which are asked the same questions; inner joins only."""
    names = "abcd"[: rng.randint(1, 4)]
    tables = random_tables(rng, names)
    if aliases:
        tables |= {name: replace(tables["a"], source="a") for name in rng.sample(names, min(2, len(names)))}
    plan: Plan = Relation(names[0], tables[names[0]])
    asked: Counter[str] = Counter()

    def number(texts: str) -> int:
        """Another one for each question, or for each about the same texts of an alias."""
        asked[texts if aliases else ""] += 1
        return asked[texts if aliases else ""]

    for name in names[1:]:
        plan = some_filters(rng, plan, number)
        other = some_filters(rng, Relation(name, tables[name]), number)
        kind = "inner" if aliases else rng.choice(["inner"] * 6 + ["left", "right", "full", "semi", "anti"])
        here = rng.choice(sorted(relations(plan)))
        predicates = tuple(question(rng, [here, name], number) for _ in range(rng.choice([0, 1, 1, 2])))
        keys = ((TextRef(here, "k"), TextRef(name, "k")),) if not predicates or rng.random() < 0.2 else ()
        plan = AiJoin(kind, plan, other, keys, predicates)
    plan = some_filters(rng, plan, number)
    return Project((TextRef(names[0], "t"),), plan) if rng.random() < 0.3 else plan


def some_filters(rng: random.Random, plan: Plan, number) -> Plan:
    for _ in range(rng.choice([0, 0, 1, 2])):
        there = sorted(relations(plan))
        read = rng.sample(there, min(len(there), rng.choice([1, 1, 1, 2])))
        plan = AiFilter((question(rng, read, number),), plan)
    return plan


def question(rng: random.Random, read: list[str], number) -> AiPredicate:
    texts = " and ".join(f"{{{name}.{rng.choice('tu')}}}" for name in rng.sample(read, len(read)))
    return AiPredicate.of(f"{texts} {number(texts)}", rng.choice([None, 0.02, 0.3, 0.8]))


def ordered(rows: list[dict]) -> list:
    return sorted(str(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("seed", range(30))
def test_the_rows_stay_the_same(seed):
    rng = random.Random(seed)
    plan, settings = random_plan(rng), context(layout=rng.choice(["document_first", "literal"]))
    runner, planned = Runner(seed), optimize(plan, settings)
    assert ordered(runner.run(planned)) == ordered(runner.run(plan))
    asked = [p for node in nodes(planned) if isinstance(node, AiFilter | AiJoin) for p in node.predicates]
    written = [p for node in nodes(plan) if isinstance(node, AiFilter | AiJoin) for p in node.predicates]
    assert sorted(asked, key=str) == sorted(written, key=str)
    again = estimate_plan(optimize(planned, settings), settings)
    assert again.seconds <= estimate_plan(planned, settings).seconds * 1.02


def as_written(plan: Plan) -> Plan:
    """The plan with the anchors that the templates name first, and nothing else decided."""
    if isinstance(plan, Relation):
        return plan
    if isinstance(plan, AiJoin):
        anchor = plan.predicates[0].relations[0] if plan.predicates and plan.kind == "inner" else None
        plan = replace(plan, left=as_written(plan.left), right=as_written(plan.right), anchor=anchor)
        return plan
    return replace(plan, child=as_written(plan.child))


@pytest.mark.parametrize("aliases", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_planning_never_costs(seed, aliases):
    rng = random.Random(1000 + seed)
    plan, settings = random_plan(rng, aliases), context()
    naive = estimate_plan(choose_anchors(as_written(plan), settings), settings)
    planned = estimate_plan(optimize(plan, settings), settings)
    assert planned.seconds <= naive.seconds * 1.02
    assert planned.rows_out == pytest.approx(naive.rows_out, rel=1e-6, abs=1e-6)
