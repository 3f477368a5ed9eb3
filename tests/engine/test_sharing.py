"""Sessions at the same time: windows wait for room, and no answer is computed by two."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from evaluators import predicate

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator
from quail_spark.engine.sharing import AHEAD, Claims, Room, Turn
from quail_spark.optimizer.plan import OperatorSpec


@pytest.mark.parametrize("pages", [None, 1, 10])
def test_windows_hold_no_more_than_there_is(pages):
    room, rng = Room(pages), random.Random()
    held, seen, lock = [], [], threading.Lock()

    def window(size: int) -> None:
        with room.taken(size):
            with lock:
                held.append(size)
                seen.append(tuple(held))
            time.sleep(0.001)
            with lock:
                held.remove(size)

    sizes = [rng.choice([0, 1, 3, 7, 25]) for _ in range(60)]  # 25: larger than all there is
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(window, sizes))
    assert len(seen) == 60 and not held
    if pages:
        # a window that is larger than everything is alone, but for those that hold nothing
        assert all(sum(sizes) <= pages or sum(map(bool, sizes)) == 1 for sizes in seen)


def test_a_failing_window_gives_its_room_back():
    room = Room(3)
    with pytest.raises(RuntimeError), room.taken(3):
        raise RuntimeError
    with room.taken(3):
        pass


def test_a_turn_is_one_wave_s_and_ends_with_an_error():
    turn, order = Turn(), []

    def wave() -> None:
        with turn.taken(3):
            order.append("other")

    with turn.taken(2):
        other = threading.Thread(target=wave)
        other.start()
        with turn.taken(1):
            order.append("short")
        other.join(0.05)
        order.append("first")
    other.join(60)
    assert order == ["short", "first", "other"]
    with pytest.raises(RuntimeError), turn.taken(2):
        raise RuntimeError
    with turn.taken(2):
        pass


def test_few_passes_of_long_waves_are_ahead_of_the_device():
    turn, done = Turn(), []
    for wave in range(3):
        with turn.taken(4):
            for number in range(4):
                turn.admit()
                launched = 4 * wave + number
                assert len(done) == max(0, launched - AHEAD + 1) and done == sorted(done)
                turn.launched(lambda launched=launched: done.append(launched))


def test_claims_are_one_owner_s_until_the_end():
    claims = Claims()
    with claims.taken([b"a", b"b"]) as first:
        assert list(first) == [b"a", b"b"]
        with claims.taken([b"b", b"c"]) as second:
            assert list(second) == [b"c"]
        done = threading.Event()
        waiter = threading.Thread(target=lambda: (claims.wait([b"a"]), done.set()))
        waiter.start()
        assert not done.wait(0.05)
        claims.wait([b"a", b"z"])  # z is nobody's
    waiter.join(60)
    assert done.is_set()
    with pytest.raises(RuntimeError), claims.taken([b"a"]):
        raise RuntimeError
    with claims.taken([b"a"]) as again:
        assert list(again) == [b"a"]


@pytest.mark.parametrize("memory", [0, 10_000])
def test_sessions_at_the_same_time_ask_each_question_once(memory):
    evaluator = ScriptedEvaluator(EngineConfig("scripted://hash?rate=0.5&delay_ms=2", answer_memory=memory))
    spec = OperatorSpec("f", "filter", (predicate("{0} a", 0), predicate("{0} b", 0)))
    rng = random.Random()
    calls = [[[f"text {rng.randrange(40)}"] for _ in range(20)] for _ in range(24)]

    def ask(rows):
        return evaluator.open(spec).rows(rows).codes.tolist()

    alone = ScriptedEvaluator(EngineConfig("scripted://hash?rate=0.5", answer_memory=0))
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(ask, calls))
    want = [alone.open(spec).rows(rows).codes.tolist() for rows in calls]
    passed = [[all(c == 1 for c in row) for row in codes] for codes in got]
    assert passed == [[all(c == 1 for c in row) for row in codes] for codes in want]
    if memory:
        assert max(evaluator.calls.values()) == 1
