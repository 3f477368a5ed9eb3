"""Sessions of one evaluator at the same time, and what they take from one another."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from evaluators import BOTH, FIRST, PAIR, PAIR_SWAPPED, SECOND, TITLE, Checker, check_no_leak, random_rows

from quail_spark.engine.kv import KVNode
from quail_spark.engine.runner import Pass
from quail_spark.engine.sharing import AHEAD
from quail_spark.optimizer.errors import EngineError
from quail_spark.optimizer.plan import OperatorSpec


def test_equal_questions_in_two_sessions_at_once_are_computed_once(evaluator_of):
    evaluator = evaluator_of()
    rows = [[f"text number {i % 10}"] for i in range(40)]
    sessions = [evaluator.open(OperatorSpec(f"s{i}", "answers", (FIRST,))) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda session: session.rows(rows), sessions))
    assert sum(a.counts.evaluations for a in answers) == 10
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0].margins, other.margins)


def test_a_short_wave_comes_between_the_passes_of_a_long_one(oracle, evaluator_of, monkeypatch):
    """The device, which is played here, does not get on with the long wave: no more of it is launched, and the short one is."""
    evaluator = evaluator_of(budget=220, answer_memory=0)
    launch, launched, device = evaluator.runner.launch, threading.Semaphore(0), threading.Event()

    def played(segments):
        made = launch(segments)
        launched.release()
        return Pass(made.nodes, made.read, lambda: device.wait(60))

    monkeypatch.setattr(evaluator.runner, "launch", played)
    long, short = OperatorSpec("long", "filter", (FIRST, SECOND)), OperatorSpec("short", "answers", (FIRST,))
    texts = [[f"text {i} " + "word film " * 10] for i in range(10)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(evaluator.open(long).rows, texts)
        assert all(launched.acquire(timeout=60) for _ in range(AHEAD))
        Checker(oracle, short).check(evaluator.open(short).rows([["film"]]), [(["film"], [])])
        assert launched.acquire(timeout=60)
        assert not launched.acquire(timeout=0.05) and not waiting.done()
        device.set()
        Checker(oracle, long).check(waiting.result(60), [(row, []) for row in texts])


@pytest.mark.parametrize("kv_bytes", [64 << 20, 1 << 20])
def test_sessions_at_the_same_time_with_small_passes(oracle, evaluator_of, kv_bytes):
    """Their passes come between one another's, and take one another's pages."""
    rng = random.Random()
    evaluator = evaluator_of(150, kv_bytes, answer_memory=0)
    specs = [OperatorSpec(f"filter {i}", "filter", (FIRST, SECOND, TITLE)) for i in range(3)]
    specs += [OperatorSpec("answers", "answers", (FIRST, BOTH)), OperatorSpec("join", "pairs", (PAIR, PAIR_SWAPPED))]
    asked = [random_rows(rng, 12) for _ in specs]

    def ask(spec, rows):
        session = evaluator.open(spec)
        answers = session.pairs([rows[0]], [1], [rows]) if spec.kind == "pairs" else session.rows(rows)
        session.close()
        return answers

    with ThreadPoolExecutor(len(specs)) as pool:
        found = list(pool.map(ask, specs, asked))
    for spec, rows, answers in zip(specs, asked, found, strict=True):
        items = [(rows[0], partner) for partner in rows] if spec.kind == "pairs" else [(row, []) for row in rows]
        Checker(oracle, spec).check(answers, items)
    check_no_leak(evaluator)


def test_kept_anchors_give_way_to_other_sessions(oracle, evaluator_of):
    evaluator = evaluator_of(kv_bytes=1 << 20, answer_memory=0)
    spec = OperatorSpec("join", "pairs", (PAIR,))
    anchors = [[f"{name} " + "word film " * 20] for name in ("red", "green", "blue", "black", "white", "grey")]
    sessions = [evaluator.open(spec) for _ in anchors]
    recomputed = 0
    for block in ([["a"], ["b"]], [["c"], ["d"]]):
        for number, (session, anchor) in enumerate(zip(sessions, anchors, strict=True)):
            answers = session.pairs([anchor], [number], [block])
            Checker(oracle, spec).check(answers, [(anchor, partner) for partner in block])
            recomputed += answers.counts.recomputed_tokens
    assert recomputed > 0
    for session in sessions:
        session.close()
    check_no_leak(evaluator)


def fill(evaluator, pages: int) -> None:
    """So many pages are retained documents that nobody will ask about."""
    for number in range(pages):
        node = KVNode(evaluator.runner.page_pool, evaluator.runner.page_pool.page_size)
        evaluator.retained.put(b"document %d" % number, node)
        node.release()


def test_documents_retained_meanwhile_give_way_at_the_launch(oracle, evaluator_of, monkeypatch):
    """Between laying a wave out and its turn others may take all pages that were free."""
    evaluator = evaluator_of(kv_bytes=1 << 20, answer_memory=0)  # 256 tokens
    each = evaluator.shared.turn.each

    def late(parts, launch):
        fill(evaluator, evaluator.runner.page_pool.free_pages)
        return each(parts, launch)

    monkeypatch.setattr(evaluator.shared.turn, "each", late)
    spec, anchor = OperatorSpec("join", "pairs", (PAIR,)), ["word film " * 20]
    partners = [[f"partner {i}"] for i in range(6)]
    session = evaluator.open(spec)
    answers = session.pairs([anchor], [1], [partners])
    Checker(oracle, spec).check(answers, [(anchor, partner) for partner in partners])
    assert answers.counts.recomputed_tokens == 0 and answers.counts.reused_tokens > 5 * 40
    assert 0 < len(evaluator.retained) < evaluator.runner.page_pool.total_pages
    session.close()
    evaluator.close()
    check_no_leak(evaluator)


def test_retained_documents_stay_while_pages_suffice(evaluator_of):
    evaluator = evaluator_of(kv_bytes=1 << 20, answer_memory=0)
    pages = evaluator.runner.page_pool.total_pages
    fill(evaluator, pages - 2)
    evaluator.open(OperatorSpec("f", "filter", (FIRST,))).rows([[f"text {i}"] for i in range(8)])
    assert len(evaluator.retained) == pages - 2


def test_kept_anchors_that_cost_least_give_way_first(evaluator_of):
    evaluator = evaluator_of(answer_memory=0)
    spec, pool = OperatorSpec("join", "pairs", (PAIR,)), evaluator.runner.page_pool
    anchors = [["word film " * words] for words in (2, 40, 1)]
    free, sessions = [pool.free_pages], []
    for number, anchor in enumerate(anchors):
        sessions.append(evaluator.open(spec))
        sessions[-1].pairs([anchor], [number], [[["a"], ["b"]]])
        free.append(pool.free_pages)
    long = free[1] - free[2]
    evaluator.keepers.make_room(free[0] - long)
    assert pool.free_pages == free[0] - long
    evaluator.keepers.make_room(free[0])
    for session in sessions:
        session.close()
    check_no_leak(evaluator)


def test_a_cancelled_call_ends_before_its_next_pass(evaluator_of, monkeypatch):
    evaluator = evaluator_of(budget=220, answer_memory=0)
    session = evaluator.open(OperatorSpec("f", "filter", (FIRST, SECOND)))
    launch, passes = evaluator.runner.launch, []

    def launching(segments):
        passes.append(len(segments))
        if len(passes) == 2:
            session.cancel()
        return launch(segments)

    monkeypatch.setattr(evaluator.runner, "launch", launching)
    rows = [[f"text {i} " + "word film " * 10] for i in range(10)]
    with pytest.raises(EngineError, match="'f': nobody waits"):
        session.rows(rows)
    assert len(passes) == 2
    session.close()
    check_no_leak(evaluator)
    evaluator.open(OperatorSpec("g", "filter", (FIRST,))).rows(rows)
    assert len(passes) > 4
