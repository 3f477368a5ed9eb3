"""The model evaluator against an oracle that runs every prompt whole and alone through transformers in float32."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from evaluators import (
    BOTH,
    BOTH_ANCHOR,
    BOTH_SWAPPED,
    CONTEXT,
    FIRST,
    NOTHING,
    PAIR,
    PAIR_SWAPPED,
    PARTNER_ONLY,
    SECOND,
    TITLE,
    Checker,
    check_no_leak,
    predicate,
    random_rows,
    random_text,
)

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.factory import make_evaluator
from quail_spark.engine.runner import Pass
from quail_spark.optimizer.errors import QuailError
from quail_spark.optimizer.plan import FALSE, OperatorSpec

# (token budget, KV bytes): roomy; KV for 256 tokens; passes of 40 tokens as well
BUDGETS = [(4096, 64 << 20), (4096, 1 << 20), (40, 1 << 20)]
ROW_PREDICATES = {
    "one": (FIRST,),
    "three": (FIRST, SECOND, TITLE),
    "mixed": (BOTH, FIRST, BOTH_SWAPPED, TITLE),
    "several anchors, none": (BOTH_ANCHOR, NOTHING),
}


@pytest.mark.parametrize(("budget", "kv_bytes"), BUDGETS)
@pytest.mark.parametrize("layout", ["document_first", "literal"])
@pytest.mark.parametrize("kind", ["answers", "filter"])
def test_rows(oracle, evaluator_of, kind, layout, budget, kv_bytes):
    rng = random.Random(5)
    evaluator = evaluator_of(budget, kv_bytes, answer_memory=0)
    for name, predicates in ROW_PREDICATES.items():
        spec = OperatorSpec(name, kind, predicates, layout)
        session = evaluator.open(spec)
        for count in (9, 0, 1, 5):
            rows = random_rows(rng, count)
            checker = Checker(oracle, spec)
            answers = session.rows(rows)
            checker.check(answers, [(row, []) for row in rows])
            assert answers.counts.evaluations == len(checker.asked)
            check_no_leak(evaluator)
        session.close()


@pytest.mark.parametrize(("budget", "kv_bytes"), BUDGETS)
@pytest.mark.parametrize("layout", ["document_first", "literal"])
@pytest.mark.parametrize(
    "predicates", [(PAIR,), (PAIR, PAIR_SWAPPED), (PARTNER_ONLY, PAIR, FIRST)], ids=["one", "two", "one-sided"]
)
def test_pairs(oracle, evaluator_of, predicates, layout, budget, kv_bytes):
    rng = random.Random(6)
    evaluator = evaluator_of(budget, kv_bytes, answer_memory=0)
    spec = OperatorSpec("join", "pairs", predicates, layout)
    session = evaluator.open(spec)
    partners = random_rows(rng, 9)
    id_ = 0
    for sizes in ([4, 9, 0], [3], [], [0], [1, 1, 1, 5], [9]):
        anchors, ids, blocks = [], [], []
        for size in sizes:
            if not anchors or rng.random() < 0.6:
                id_ += 1
                anchor = [random_text(rng)]
            anchors.append(anchor)
            ids.append(id_)
            blocks.append(rng.sample(partners, size))
        checker = Checker(oracle, spec)
        answers = session.pairs(anchors, ids, blocks)
        checker.check(answers, [(a, b) for a, block in zip(anchors, blocks, strict=True) for b in block])
        assert answers.counts.evaluations == len(checker.asked)
    session.close()
    check_no_leak(evaluator)


def test_anchor_and_frame_are_computed_once(oracle, evaluator_of):
    evaluator = evaluator_of()
    spec = OperatorSpec("join", "pairs", (PAIR,))
    session = evaluator.open(spec)
    anchor, partners = ["word film " * 20], [[f"{chr(97 + i)} partner"] for i in range(26)]
    sections = [oracle.sections(PAIR, spec.layout, {0: anchor[0], 1: partner[0]}) for partner in partners]
    (shared,) = {len(document) + len(frame) for document, frame, _ in sections}
    own = [len(rest) for _, _, rest in sections]
    first = session.pairs([anchor], [7], [partners[:10]]).counts
    second = session.pairs([anchor], [7], [partners[10:]]).counts
    assert first.fresh_tokens == shared + sum(own[:10]) and first.recomputed_tokens == 0
    assert second.fresh_tokens == sum(own[10:]) and second.recomputed_tokens == 0
    pages = evaluator.runner.page_pool
    assert pages.total_pages - pages.free_pages == pages.pages_for(shared)
    other = session.pairs([["x"]], [8], [partners]).counts
    assert other.recomputed_tokens == 0
    assert 0 < pages.total_pages - pages.free_pages < pages.pages_for(shared)
    session.close()
    check_no_leak(evaluator)


def test_a_document_serves_all_predicates(oracle, evaluator_of):
    text = "word film " * 30
    counts = evaluator_of().open(OperatorSpec("b", "answers", (FIRST, SECOND))).rows([[text]]).counts
    (document, _, rest), (_, _, other) = (oracle.sections(p, "document_first", {0: text}) for p in (FIRST, SECOND))
    assert counts.evaluations == 2
    assert counts.fresh_tokens <= len(document) + len(rest) + len(other) < counts.fresh_tokens + 16 * 2
    assert counts.reused_tokens >= len(document)


def long_rows(count: int) -> list[list[str]]:
    rng = random.Random(9)
    words = ["refund", "film", "liked", "TRUE", "naive", "one", "two", "claim", "very", "much", "asks"]
    return [[" ".join(rng.choice(words) for _ in range(40))] for _ in range(count)]


def test_filter_keeps_the_document_for_the_next_predicate(oracle, evaluator_of):
    rows = long_rows(20)
    spec = OperatorSpec("f", "filter", (FIRST, SECOND))
    counts = evaluator_of().open(spec).rows(rows).counts
    assert counts.asked[0] + counts.asked[1] > len(rows), "no row reached its second predicate: change the texts"
    lengths = [len(oracle.ids(p, spec.layout, {0: row[0]})) for row in rows for p in (FIRST, SECOND)]
    documents = counts.reused_tokens
    assert documents >= 40 * (sum(counts.asked) - len(rows)) and counts.recomputed_tokens == 0
    assert counts.fresh_tokens < sum(lengths)


def test_too_few_pages_cost_time_only(oracle, evaluator_of):
    rows = long_rows(20)
    spec = OperatorSpec("f", "filter", (FIRST, SECOND))
    roomy = evaluator_of().open(spec).rows(rows)
    tight = evaluator_of(kv_bytes=1 << 20).open(spec).rows(rows)
    np.testing.assert_array_equal(roomy.codes, tight.codes)
    assert tight.counts.recomputed_tokens == 0, "windows of rows should have fitted the documents into the pages"


def test_cross_product_in_random_order_shares_anchors(oracle, evaluator_of):
    rng = random.Random(7)
    anchors = [f"{name} " + "word film " * 25 for name in ("red", "green", "blue", "black")]
    rows = [[a, f"{b} shoes"] for a in anchors for b in "abcdefgh"]
    rng.shuffle(rows)
    spec = OperatorSpec("udf", "answers", (BOTH,))
    checker, answers = Checker(oracle, spec), evaluator_of().open(spec).rows(rows)
    checker.check(answers, [(row, []) for row in rows])
    assert answers.counts.fresh_tokens < 0.5 * sum(map(len, checker.asked))
    distinct = {ids[:end] for ids in checker.asked for end in range(1, len(ids) + 1)}
    assert answers.counts.fresh_tokens <= 1.3 * len(distinct)


def test_cumulative_texts_share_their_beginnings(oracle, evaluator_of):
    steps = [f"step {i} did this and that; " for i in range(12)]
    rows = [["".join(steps[:end])] for end in range(1, 13)]
    random.Random(8).shuffle(rows)
    for kind, predicates in (("answers", (FIRST,)), ("filter", (FIRST, SECOND))):
        spec = OperatorSpec("trace" + kind, kind, predicates)
        checker, answers = Checker(oracle, spec), evaluator_of().open(spec).rows(rows)
        checker.check(answers, [(row, []) for row in rows])
        assert answers.counts.fresh_tokens < 0.6 * (answers.counts.fresh_tokens + answers.counts.reused_tokens)
        assert answers.counts.recomputed_tokens == 0


def test_answers_are_remembered_across_calls_and_sessions(evaluator_of):
    evaluator = evaluator_of()
    rows = [[f"text number {i}"] for i in range(6)]
    first = evaluator.open(OperatorSpec("a", "answers", (FIRST,))).rows(rows)
    again = evaluator.open(OperatorSpec("b", "answers", (FIRST,))).rows(rows[::-1])
    np.testing.assert_array_equal(first.codes, again.codes[::-1])
    np.testing.assert_array_equal(first.margins, again.margins[::-1])
    assert first.counts.evaluations == 6
    assert (again.counts.evaluations, again.counts.remembered, again.counts.fresh_tokens) == (0, 6, 0)


def test_a_remembered_no_costs_nothing(evaluator_of):
    evaluator = evaluator_of()
    rows = [[f"text number {i}"] for i in range(20)]
    for kept in (FIRST, SECOND):
        codes = evaluator.open(OperatorSpec("one", "answers", (kept,))).rows(rows).codes[:, 0]
        refused = [row for row, code in zip(rows, codes, strict=True) if code == FALSE]
        if refused:
            counts = (
                evaluator.open(OperatorSpec(f"{kept}", "filter", (FIRST, SECOND, TITLE_OF_FIRST))).rows(refused).counts
            )
            assert counts.evaluations == 0
            return
    pytest.fail("no text is refused: change the texts")


TITLE_OF_FIRST = predicate("{0} is short", 0)


@pytest.mark.parametrize("late", [False, True], ids=["at the launch", "while it runs"])
@pytest.mark.parametrize("kind", ["answers", "filter", "pairs"])
def test_an_error_in_the_model_leaks_nothing(evaluator_of, monkeypatch, kind, late):
    evaluator = evaluator_of(budget=64)
    predicates = (PAIR, PAIR_SWAPPED) if kind == "pairs" else (FIRST, SECOND)
    session = evaluator.open(OperatorSpec("broken", kind, predicates))

    def ask():
        if kind == "pairs":
            return session.pairs([["word film " * 20]], [1], [[[f"partner {i}", f"other {i}"] for i in range(12)]])
        return session.rows([[f"text {i} " + "word film " * 20] for i in range(8)])

    def broken():
        raise RuntimeError("broken on purpose")

    launch, broken_at = evaluator.runner.launch, 0
    for broken_at in (1, 2, 3, 4, 6, 9, 14, 20, 30):
        calls = iter(range(1, 1000))

        def breaking(segments, at=broken_at, calls=calls):
            if next(calls) != at:
                return launch(segments)
            return Pass(launch(segments).nodes, broken) if late else broken()

        monkeypatch.setattr(evaluator.runner, "launch", breaking)
        try:
            ask()
        except RuntimeError:
            check_no_leak(evaluator)
        else:
            break
    assert broken_at > 3
    monkeypatch.setattr(evaluator.runner, "launch", launch)
    ask()


def test_kind_and_shape_are_checked(evaluator_of):
    evaluator = evaluator_of()
    with pytest.raises(QuailError, match="kind 'pairs'; accepted here: answers or filter"):
        evaluator.open(OperatorSpec("p", "pairs", (PAIR,))).rows([["x"]])
    with pytest.raises(QuailError, match="kind 'filter'; accepted here: pairs"):
        evaluator.open(OperatorSpec("f", "filter", (FIRST,))).pairs([["x"]], [1], [[["y"]]])
    with pytest.raises(QuailError, match="1 anchors, 2 anchor ids"):
        evaluator.open(OperatorSpec("p", "pairs", (PAIR,))).pairs([["x"]], [1, 2], [[["y"]]])


def test_an_evaluator_from_settings(tiny_checkpoint, oracle):
    import json

    config = EngineConfig(str(tiny_checkpoint), dtype="float32", threads=1, max_context=CONTEXT)
    evaluator = make_evaluator(config)
    spec = OperatorSpec("x", "answers", (FIRST,))
    Checker(oracle, spec).check(evaluator.open(spec).rows([["word film"]]), [(["word film"], [])])
    facts = json.loads(json.dumps(evaluator.describe()))
    assert facts["max_context"] == CONTEXT and facts["device"] == "cpu" and facts["dtype"] == "float32"
    assert facts["model"] == str(tiny_checkpoint) and facts["remembered_answers"] == 1
    evaluator.close()
    check_no_leak(evaluator)
