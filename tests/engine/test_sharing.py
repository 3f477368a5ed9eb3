"""Sessions at the same time: windows wait for room, and no answer is computed by two."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from evaluators import predicate

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator
from quail_spark.engine.sharing import AHEAD, Claims, FairLock, Room, Turn
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


class Played:
    """A part that a device computes. `done` takes its number when somebody waits for it."""

    def __init__(self, number=0, done=None):
        self.number, self.done = number, [] if done is None else done

    def wait(self) -> None:
        self.done.append(self.number)


def test_a_turn_is_one_wave_s_and_ends_with_an_error():
    turn, order, others = Turn(), [], []

    def launch(words: str):
        order.append(words)
        return Played()

    def first(words: str):
        if not others:
            others.append(threading.Thread(target=lambda: turn.each(["other 1", "other 2"], launch)))
            others[0].start()
            turn.each(["short"], launch)
            others[0].join(0.05)
        return launch(words)

    assert len(turn.each(["first 1", "first 2"], first)) == 2
    others[0].join(60)
    assert order == ["short", "first 1", "first 2", "other 1", "other 2"]
    with pytest.raises(ZeroDivisionError):
        turn.each([1, 0], lambda number: [Played(), 1 / number][0])
    assert turn.each([], launch) == [] and len(turn.each("ab", launch)) == 2


def test_few_passes_of_long_waves_are_ahead_of_the_device():
    turn, done = Turn(), []

    def launch(number: int) -> Played:
        assert done == list(range(max(0, number - AHEAD + 1)))
        return Played(number, done)

    for wave in range(3):
        turn.each(range(4 * wave, 4 * wave + 4), launch)


def test_a_fair_lock_goes_to_who_has_waited_longest():
    lock, order, inside = FairLock(), [], []

    def waiting(number: int) -> None:
        with lock:
            inside.append(number)
            assert len(inside) == 1
            order.append(number)
            inside.pop()

    with ThreadPoolExecutor(5) as pool:
        with lock:
            for number in range(5):
                pool.submit(waiting, number)
                while len(lock._waiting) <= number:
                    time.sleep(0.001)
        with lock:  # taken again at once, but five were before
            order.append("again")
    assert order == [0, 1, 2, 3, 4, "again"]
    with pytest.raises(RuntimeError), lock:
        raise RuntimeError
    with lock:
        pass


def test_a_fair_lock_holds_one_at_a_time():
    lock, counts = FairLock(), [0]

    def count() -> None:
        for _ in range(500):
            with lock:
                before = counts[0]
                time.sleep(0)
                counts[0] = before + 1

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(count) for _ in range(6)]
    assert all(each.exception() is None for each in done) and counts[0] == 3000


def test_a_large_window_is_not_passed_by_small_ones():
    room, order = Room(10), []

    def window(size: int) -> None:
        with room.taken(size):
            order.append(size)

    with ThreadPoolExecutor(3) as pool, room.taken(6):
        for count, size in enumerate((8, 4, 3), 1):
            pool.submit(window, size)
            while len(room._waiting) < count:
                time.sleep(0.001)
        with room.taken(0):
            order.append("nothing")
    assert order[:2] == ["nothing", 8] and set(order[2:]) == {3, 4}


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
