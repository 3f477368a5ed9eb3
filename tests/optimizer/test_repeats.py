"""How much of a question was asked before under another alias, against counting with random answers."""

import random
from dataclasses import replace

import pytest
from make import context, table

from quail_spark.optimizer.cardinality import Cardinality
from quail_spark.optimizer.estimate import estimate_plan
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Relation
from quail_spark.optimizer.repeats import asked_before, asking, prompt_key, question_key
from quail_spark.optimizer.rules.choose_anchors import choose_anchors

PEOPLE = replace(table(400, t=50), source="people")
TABLES = {"p": PEOPLE, "q": PEOPLE, "other": table(400, t=50)}


def test_keys_forget_aliases_but_not_tables_columns_or_order():
    def keys(words: str, anchor: str) -> tuple:
        predicate = AiPredicate.of(words)
        return question_key(predicate, TABLES), prompt_key(predicate, anchor, TABLES)

    assert keys("{p.t} is tall", "p") == keys("{q.t} is tall", "q")
    assert keys("{p.t} is tall", "p")[0] != keys("{other.t} is tall", "other")[0]
    assert keys("{p.t} is tall", "p")[0] != keys("{q.u} is tall", "q")[0]
    one, swapped = keys("{p.t} knows {other.t}", "p"), keys("{q.t} knows {other.t}", "other")
    assert one[0] == swapped[0] and one[1] != swapped[1]


@pytest.mark.parametrize("seed", range(20))
def test_against_counting(seed):
    """Both askings pass some of three independent questions, of either side of a pair; a join leaves a part of the first."""
    rng = random.Random(seed)
    rates = {question: rng.choice([0.2, 0.5, 0.9]) for question in "xyz"}
    share = rng.choice([1.0, 0.6])
    first, second = ([rng.sample("xyz", rng.randint(0, 3)) for _ in range(2)] for _ in range(2))
    true = [{q: {row for row in range(400) if rng.random() < rates[q]} for q in "xyz"} for _ in range(2)]

    def rows(side: int, questions: list[str]) -> set[int]:
        return set.intersection(set(range(400)), *(true[side][q] for q in questions))

    joined = {row for row in range(400) if rng.random() < share}
    before = {(a, b) for a in rows(0, first[0]) & joined for b in rows(1, first[1])}
    now = {(a, b) for a in rows(0, second[0]) for b in rows(1, second[1])}
    sizes = {"a": 400.0, "b": 400.0}

    def expected(questions: list[list[str]], left: float):
        passed = {name: [(q, rates[q]) for q in own] for name, own in zip("ab", questions, strict=True)}
        live = {name: 400.0 for name in "ab"}
        for name, own in passed.items():
            for _, rate in own:
                live[name] *= rate
        return asking(("a", "b"), sizes, Cardinality({"a": live["a"] * left, "b": live["b"]}), passed)

    found = asked_before([expected(first, share)], expected(second, 1.0))
    assert found == pytest.approx(len(before & now) / len(now) if now else found, abs=0.15)


def test_the_second_alias_is_free_where_nothing_differs():
    def join(second: str) -> AiFilter | AiJoin:
        people = [Relation("p", PEOPLE), Relation("q", replace(PEOPLE, source=second))]
        filters = [AiFilter((AiPredicate.of(f"{{{each.name}.t}} is tall", 0.3),), each) for each in people]
        return choose_anchors(
            AiJoin("inner", *filters, predicates=(AiPredicate.of("{p.t} knows {q.t}", 0.1),)), context()
        )

    same, others = estimate_plan(join("people"), context()), estimate_plan(join("others"), context())
    assert [round(o.work.answers) for o in same.operators] == [400, 0, 14400]
    assert [round(o.work.answers) for o in others.operators] == [400, 400, 14400]
    assert same.rows_out == others.rows_out
