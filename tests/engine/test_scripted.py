"""The scripted evaluator, and with it the session's rules without a model."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.factory import make_evaluator
from quail_spark.engine.scripted import scripted_answer
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import FAILED, FALSE, NULL, SKIPPED, TRUE, Argument, OperatorSpec, Predicate

HASH = "scripted://hash?rate=0.6&seed=7"


def answer(template: str, *texts: str) -> int:
    return TRUE if scripted_answer(template, texts, 0.6, 7) else FALSE


def evaluator(model: str = HASH, **settings):
    return make_evaluator(EngineConfig(model, **settings))


def predicate(template: str, *columns: int, **more) -> Predicate:
    return Predicate(template, tuple(Argument(c) for c in columns), **more)


A, B, AB = predicate("{0} is a", 0), predicate("{0} is b", 1), predicate("{0} with {1}", 0, 1)
PAIR = Predicate("{0} might buy {1}", (Argument(0), Argument(0, partner=True)))


def test_rate_is_the_share_of_true():
    answers = [scripted_answer("{0} is good", (f"text {i}",), rate=0.3, seed=1) for i in range(5000)]
    assert 0.27 < np.mean(answers) < 0.33
    assert answers != [scripted_answer("{0} is good", (f"text {i}",), rate=0.3, seed=2) for i in range(5000)]


def test_answers_depend_on_template_and_used_texts_only():
    rows = [[f"t{i}", "unused"] for i in range(50)]
    swapped = [["other", text] for text, _ in rows]
    plain = evaluator().open(OperatorSpec("a", "answers", (predicate("{0} is a", 0, 1),))).rows(rows)
    other = (
        evaluator()
        .open(OperatorSpec("b", "answers", (predicate("{0} is a", 1, anchor=(0,)),), "literal"))
        .rows(swapped)
    )
    np.testing.assert_array_equal(plain.codes, other.codes)
    assert plain.codes[:, 0].tolist() == [answer("{0} is a", text) for text, _ in rows]


def test_texts_go_in_order_of_first_use():
    codes = (
        evaluator().open(OperatorSpec("a", "answers", (predicate("{1} then {0}", 0, 1),))).rows([["x", "y"]] * 2).codes
    )
    assert codes.tolist() == [[answer("{1} then {0}", "y", "x")]] * 2


def random_rows(seed: int) -> list[list[str | None]]:
    rng = random.Random(seed)
    return [[rng.choice([None, "", "a", "b", "c", "d", "too long"]) for _ in range(2)] for _ in range(60)]


@pytest.mark.parametrize("seed", range(5))
def test_answers_kind_answers_everything(seed):
    rows = random_rows(seed)
    got = evaluator(HASH + "&fail_containing=too long").open(OperatorSpec("a", "answers", (A, B, AB))).rows(rows)
    expected = []
    for a, b in rows:
        cells = (("{0} is a", [a]), ("{0} is b", [b]), ("{0} with {1}", [a, b]))
        expected.append(
            [NULL if None in t else FAILED if "too long" in t else answer(template, *t) for template, t in cells]
        )
    assert got.codes.tolist() == expected
    failures = [(i, p) for i, codes in enumerate(expected) for p, code in enumerate(codes) if code == FAILED]
    assert [(i, p) for i, p, _ in got.errors] == failures
    assert all(f"row {i}, predicate" in message for i, _, message in got.errors)


@pytest.mark.parametrize("seed", range(5))
def test_filter_stops_at_the_first_answer_that_is_not_true(seed):
    rows = random_rows(seed)
    got = evaluator(HASH + "&fail_containing=too long").open(OperatorSpec("f", "filter", (A, B))).rows(rows)
    for (a, b), codes in zip(rows, got.codes.tolist(), strict=True):
        if a is None or b is None:
            assert codes == [NULL if a is None else SKIPPED, NULL if b is None else SKIPPED]
            continue
        right = [FAILED if "too long" in text else answer(t, text) for t, text in (("{0} is a", a), ("{0} is b", b))]
        if FALSE in right:
            assert (
                sorted(codes) in ([SKIPPED, FALSE], [FALSE, TRUE])
                and codes[codes.index(FALSE)] == right[codes.index(FALSE)]
            )
        elif right == [FAILED, FAILED]:
            assert sorted(codes) == [FAILED, SKIPPED]
        else:
            assert codes == right


@pytest.mark.parametrize("kind", ["answers", "filter"])
def test_each_distinct_question_is_asked_once(kind):
    maker = evaluator()
    rows = [[f"t{i % 5}", f"u{i % 3}"] for i in range(60)]
    for name in ("first", "second"):
        session = maker.open(OperatorSpec(name, kind, (A, B, AB)))
        session.rows(rows[:30])
        session.rows(rows[30:])
    assert set(maker.calls.values()) == {1}
    if kind == "answers":
        assert len(maker.calls) == 5 + 3 + 15
    assert maker.describe()["calls"] == [[t, list(texts), 1] for t, texts in maker.calls]
    json.dumps(maker.describe())


def test_without_memory_each_call_asks_again():
    maker = evaluator(answer_memory=0)
    for _ in range(3):
        counts = maker.open(OperatorSpec("a", "answers", (A,))).rows([["x"]] * 4).counts
        assert (counts.evaluations, counts.remembered) == (1, 3)
    assert maker.calls == {("{0} is a", ("x",)): 3}


def test_failures_are_not_remembered():
    maker = evaluator("scripted://hash?fail_containing=bad")
    for _ in range(2):
        answers = maker.open(OperatorSpec("a", "answers", (A,))).rows([["bad"], ["good"]])
        assert answers.codes[0, 0] == FAILED and len(answers.errors) == 1
    assert list(maker.calls) == [("{0} is a", ("good",))]


def test_pairs():
    maker = evaluator()
    session = maker.open(OperatorSpec("join", "pairs", (PAIR,)))
    anchors, partners = [["x"], [None], ["y"]], [["p"], [None], ["q"]]
    codes = session.pairs(anchors, [1, 2, 3], [partners, partners, []]).codes[:, 0].tolist()
    assert codes == [answer(PAIR.template, "x", "p"), NULL, answer(PAIR.template, "x", "q"), NULL, NULL, NULL]
    assert session.pairs([], [], []).codes.shape == (0, 1)
    assert session.pairs([["x"]], [1], [[]]).codes.shape == (0, 1)


def test_observed_pass_rates_change_the_order():
    maker = evaluator("scripted://contains?word=yes")
    first, second = predicate("a {0}", 0, selectivity=0.1), predicate("b {0}", 1, selectivity=0.9)
    rows = [[f"yes {i}", f"no {i}"] for i in range(200)]
    session = maker.open(OperatorSpec("adaptive", "filter", (first, second)))
    assert session.rows(rows[:100]).counts.asked == [100, 100]
    assert session.rows(rows[100:]).counts.asked == [0, 100]
    fresh = maker.open(OperatorSpec("adaptive", "filter", (first, second)))
    assert fresh.rows([["yes x", "no x"]]).counts.asked == [0, 1], "sessions of one operator share what was observed"


def test_overlap():
    session = evaluator("scripted://overlap").open(OperatorSpec("o", "answers", (AB, predicate("Likes shoes: {0}", 0))))
    codes = session.rows([["Red shoes", "shoes, blue"], ["Red", "blue"]]).codes
    assert codes.tolist() == [[TRUE, TRUE], [FALSE, FALSE]]


def test_contains():
    session = evaluator("scripted://contains?word=refund").open(OperatorSpec("c", "answers", (A,)))
    assert session.rows([["a refund"], ["none"]]).codes.tolist() == [[TRUE], [FALSE]]


def test_counts_add_up():
    rows = [["one two three", "x"], ["one two three", "y"]]
    counts = evaluator().open(OperatorSpec("a", "answers", (A, AB))).rows(rows).counts
    assert counts.rows == 2 and counts.evaluations == 3 and counts.remembered == 1
    assert counts.asked == [2, 2] and sum(counts.passed) <= 4
    lengths = [3 + 3, 3 + 3, 3 + 3 + 1, 3 + 3 + 1]
    assert counts.fresh_tokens + counts.reused_tokens == sum(lengths)


def test_threads_and_delay():
    maker = evaluator(HASH + "&delay_ms=20")
    rows = [[f"t{i % 10}"] for i in range(40)]
    sessions = [maker.open(OperatorSpec(f"s{i}", "answers", (A,))) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda session: session.rows(rows), sessions))
    assert sum(a.counts.evaluations for a in answers) == 10 and set(maker.calls.values()) == {1}
    assert sum(a.counts.seconds for a in answers) >= 0.02


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("scripted://hsah", "accepted: scripted://hash"),
        ("scripted://hash?rat=1", "parameter rat='1'.*accepted: rate"),
        ("scripted://hash?rate=lots", "parameter rate='lots'"),
        ("scripted://hash?calls=maybe", "parameter calls='maybe'"),
    ],
)
def test_a_wrong_script_is_one_clear_error(model, message):
    with pytest.raises(ConfigError, match=message):
        evaluator(model)


def test_no_model_library_is_loaded():
    import subprocess
    import sys

    code = (
        "import sys; from quail_spark.engine.factory import make_evaluator; from quail_spark.engine.config import EngineConfig;"
        "make_evaluator(EngineConfig('scripted://hash')); assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
