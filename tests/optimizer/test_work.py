"""Counted work against counting pair by pair, and against the published speed of light of five workloads."""

import random

import pytest

from quail_spark.optimizer.device import find_device
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.work import (
    NOTHING,
    Length,
    Work,
    ask,
    ask_cumulative,
    ask_in_turn,
    ask_pairs,
    pairs_until_true,
)

H200 = Roofline(known_model("qwen3-4b"), find_device("NVIDIA H200"), "fp8")
QUESTION = Length.exactly(40)

# Sums over the token lengths of the yardstick workloads (fixed seeds): rows, Σn, Σn².
DOCUMENTS = (4000, 1_417_377, 700_977_665)
SURVIVORS = (DOCUMENTS, (2267, 794_096, 389_961_292), (512, 181_994, 89_445_026))
BIO_ANCHORS, BIO_TERMS = (16, 69_780, 314_864_938), (1127, 6_658, 43_874)
AGENT_STEPS = (480, 337_046, 247_247_882)


def length(rows: int, total: int, squares: int) -> Length:
    return Length(total / rows, squares / rows)


def filters3() -> Work:
    stages = [ask(length(*s), QUESTION, held=i > 0, keep=i < 2) * s[0] for i, s in enumerate(SURVIVORS)]
    return stages[0] + stages[1] + stages[2]


WORKLOADS = {
    "filter": (ask_in_turn(4000, length(*DOCUMENTS), [QUESTION], [0.5], shared=True), 1_577_377, 6.04),
    "filters3": (filters3(), 1_688_537, 6.47),
    "join": (ask_pairs(16, 16 * 1100, Length.exactly(2500), NOTHING, Length.exactly(38)), 708_800, 3.64),
    "bio": (
        ask_pairs(16, 16 * 1127, length(*BIO_ANCHORS), Length.exactly(35), length(*BIO_TERMS) + Length.exactly(4)),
        248_996,
        1.48,
    ),
    "agent": (ask_cumulative(40, length(*AGENT_STEPS), 12, QUESTION), 356_246, 2.21),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_speed_of_light_of_the_yardsticks(name):
    work, fresh, seconds = WORKLOADS[name]
    assert round(work.fresh) == fresh
    assert H200.speed_of_light()(work) == pytest.approx(seconds, rel=0.02)
    assert H200(work) > H200.speed_of_light()(work)


def test_requested_tokens_are_fresh_and_reused_ones():
    requested = {"filter": 1_577_377, "filters3": 2_664_627, "join": 44_668_800, "bio": 79_451_836}
    for name, tokens in requested.items():
        work = WORKLOADS[name][0]
        assert round(work.fresh + work.reused) == tokens, name
    agent = WORKLOADS["agent"][0]
    assert agent.fresh + agent.reused == pytest.approx(
        2_210_853, rel=0.005
    )  # steps of a history are taken as independent


class Counter:
    """Runs prompts token by token; what is kept is given by name."""

    def __init__(self):
        self.work, self.kept = Work(), set()

    def run(self, prefix: int, new: int, answer: bool) -> None:
        self.work += Work(fresh=new, reused=prefix if answer else 0, answers=answer)
        for position in range(new):
            self.work += Work(own_pairs=position + 1, kept_pairs=prefix)


def test_filters_in_turn_against_a_token_loop():
    rng = random.Random(5)
    documents = [rng.randint(1, 30) for _ in range(40)]
    rests = [rng.randint(1, 10) for _ in range(3)]
    for shared in (True, False):
        counter = Counter()
        for document in documents:
            for number, rest in enumerate(rests):
                held = shared and number > 0
                counter.run(document if held else 0, rest if held else document + rest, True)
        formula = ask_in_turn(40, Length.of(documents), [Length.exactly(r) for r in rests], [1.0] * 3, shared)
        for name in ("fresh", "reused", "own_pairs", "kept_pairs", "answers"):
            assert getattr(formula, name) == pytest.approx(getattr(counter.work, name)), name
        total = sum(documents)
        assert (formula.kv_written, formula.kv_read) == pytest.approx((total, 2 * total) if shared else (0, 0))


@pytest.mark.parametrize("held", [True, False])
def test_pairs_against_a_token_loop(held):
    rng = random.Random(6)
    anchors, tails = [rng.randint(5, 40) for _ in range(6)], [rng.randint(1, 6) for _ in range(9)]
    frame, counter, requested = 7, Counter(), 0
    for anchor in anchors:
        counter.run(anchor if held else 0, frame if held else anchor + frame, False)
        for tail in tails:
            counter.run(anchor + frame, tail, True)
            requested += anchor + frame + tail
    formula = ask_pairs(6, 54, Length.of(anchors), Length.exactly(frame), Length.of(tails), held)
    for name in ("fresh", "own_pairs", "kept_pairs", "answers"):
        assert getattr(formula, name) == pytest.approx(getattr(counter.work, name)), name
    assert formula.fresh + formula.reused == pytest.approx(requested)
    assert formula.kv_written == pytest.approx(6 * frame + (0 if held else sum(anchors)))


def test_a_join_without_pairs_costs_nothing():
    assert ask_pairs(5, 0, Length.exactly(9), NOTHING, Length.exactly(3)) == Work()


def test_pairs_until_the_first_true():
    rng = random.Random(7)
    for rate, partners in ((0.3, 5), (0.02, 100), (1.0, 4), (0.0, 9)):
        asked = 0
        for _ in range(4000):
            for _ in range(partners):
                asked += 1
                if rng.random() < rate:
                    break
        assert asked / 4000 == pytest.approx(pairs_until_true(partners, rate), rel=0.05)


@pytest.mark.parametrize("steps", [2, 12, 40])
def test_texts_that_begin_like_others_are_computed_once(steps):
    """Snapshots of a growing text, by the means of their lengths, against counting each step."""
    step, rest = Length.exactly(700.0), Length.exactly(40.0)
    lengths = [700.0 * n for n in range(1, steps + 1)]
    mean = sum(lengths) / steps
    whole = Length.of(lengths)
    snapshots = Length(whole.mean, whole.square, mean - 700.0)
    exact, found = ask_cumulative(5, step, steps, rest), ask(snapshots, rest) * (5 * steps)
    assert found.fresh == pytest.approx(exact.fresh)
    assert found.reused == pytest.approx(exact.reused)
    assert found.pairs == pytest.approx(exact.pairs, rel=0.35)
    assert found.kv_written == pytest.approx(exact.kv_written)
