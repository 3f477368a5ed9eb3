"""KV that one operator leaves for the next: fewer tokens, the same answers, and no page lost."""

import random

import numpy as np
import pytest
import torch
from evaluators import check_no_leak, predicate

from quail_spark.engine.kv import KVNode, PagePool
from quail_spark.engine.retained import Retained
from quail_spark.optimizer.plan import TRUE, OperatorSpec

FILTER = predicate("{0} asks for a refund", 0)
OTHER = predicate("did the reviewer like {0}?", 0)
PAIR = predicate("{0} might buy {1}", 0, 0, partner=(1,))
STAR = predicate("{0} mentions {1}", 0, 0, partner=(1,))
WORDS = ["refund", "film", "liked", "one", "two", "three"]


def texts(rng: random.Random, count: int, words: int) -> list[list[str]]:
    return [[" ".join(rng.choice(WORDS) for _ in range(words)) + f" {i}"] for i in range(count)]


def run(evaluator, first: OperatorSpec, rows, joins: list[OperatorSpec], partners):
    """A filter (or a join), then joins on its survivors; answers of all, and fresh tokens of the joins."""
    session = evaluator.open(first)
    answers = [session.rows(rows)]
    session.close()
    live = [row for row, codes in zip(rows, answers[0].codes, strict=True) if (codes == TRUE).all()]
    fresh = []
    for join in joins:
        session = evaluator.open(join)
        answers.append(session.pairs(live, list(range(len(live))), [partners] * len(live)))
        session.close()
        fresh.append(answers[-1].counts.fresh_tokens)
    return answers, len(live), fresh


@pytest.mark.parametrize("predicates", [(FILTER,), (FILTER, OTHER)])
def test_filter_then_joins_on_the_same_anchor(evaluator_of, predicates):
    rng = random.Random()
    rows, partners = texts(rng, 24, 30), texts(rng, 5, 3)
    results = []
    for retain in (False, True):
        evaluator = evaluator_of(answer_memory=0)
        joins = [
            OperatorSpec("j", "pairs", (PAIR,), retain=retain),
            OperatorSpec("k", "pairs", (STAR,)),
        ]
        results.append(run(evaluator, OperatorSpec("f", "filter", predicates, retain=retain), rows, joins, partners))
    (plain, live, dear), (kept, same, cheap) = results
    assert live == same and live > 0
    for a, b in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_allclose(a.margins, b.margins, atol=2e-3)
    documents = dear[0] - cheap[0]
    assert documents >= live * 30  # the anchors' own tokens, words of one token or more
    assert kept[1].counts.reused_tokens == plain[1].counts.reused_tokens + documents
    assert not len(evaluator.retained)


def test_what_nobody_asks_for_gives_way(evaluator_of):
    evaluator = evaluator_of(kv_bytes=1 << 20, answer_memory=0)  # 256 tokens
    rng = random.Random()
    rows = texts(rng, 30, 20)
    session = evaluator.open(OperatorSpec("f", "filter", (FILTER,), retain=True))
    first = session.rows(rows)
    assert 0 < len(evaluator.retained) < 30
    second = evaluator.open(OperatorSpec("g", "filter", (FILTER, OTHER))).rows(rows)
    np.testing.assert_array_equal(first.codes[:, 0] == TRUE, second.codes[:, 0] == TRUE)
    evaluator.close()
    check_no_leak(evaluator)


def test_regret_counts_documents_that_had_to_give_way(evaluator_of):
    evaluator = evaluator_of(answer_memory=0)
    rows = texts(random.Random(), 20, 20)
    first = evaluator.open(OperatorSpec("f", "filter", (FILTER,), retain=True)).rows(rows)
    passed = int((first.codes == TRUE).sum())
    assert len(evaluator.retained) == passed > 0
    evaluator.retained.make_room(evaluator.runner.page_pool.total_pages)
    assert not len(evaluator.retained)
    again = [evaluator.open(OperatorSpec("g", "filter", (OTHER,))).rows(rows).counts for _ in range(2)]
    assert passed * 20 <= again[0].recomputed_tokens < again[0].fresh_tokens
    assert again[1].recomputed_tokens == 0


def test_the_cheapest_to_compute_again_goes_first():
    pool = PagePool(1, 1, 1, 40, 4, torch.float32, "cpu")
    retained = Retained(pool)
    root = KVNode(pool, 40)
    nodes = {b"full": KVNode(pool, 16), b"deep": KVNode(pool, 16, root), b"ragged": KVNode(pool, 13)}
    for key, node in nodes.items():
        retained.put(key, node)
        retained.put(key, node)  # once is enough
        node.release()
    assert pool.free_pages == 40 - 10 - 12
    for free, expected in ((18, []), (20, [b"ragged"]), (26, [b"ragged", b"full"])):
        retained.make_room(free)
        assert {key for key in nodes if key not in retained} == set(expected)
    taken = retained.take(b"deep")
    assert taken is nodes[b"deep"] and retained.take(b"deep") is None and not retained
    taken.release()
    root.release()
    retained.make_room(99)
    assert pool.free_pages == 40
