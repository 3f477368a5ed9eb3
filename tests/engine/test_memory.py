"""The memory of answers."""

import random
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from quail_spark.engine.memory import AnswerMemory


def key(i: int) -> bytes:
    return i.to_bytes(16, "big")


def test_least_recently_used_leaves_first():
    rng = random.Random(3)
    memory, naive = AnswerMemory(20), OrderedDict()
    for step in range(2000):
        i = rng.randrange(60)
        if rng.random() < 0.5:
            expected = {key(i): naive[i]} if i in naive else {}
            assert memory.find([key(i)]) == expected
        else:
            memory.add({key(i): float(step)})
            naive[i] = float(step)
        if i in naive:
            naive.move_to_end(i)
        while len(naive) > 20:
            naive.popitem(last=False)
    assert len(memory) == 20


def test_no_capacity_remembers_nothing():
    memory = AnswerMemory(0)
    memory.add({key(1): 1.0})
    assert memory.find([key(1)]) == {} and len(memory) == 0


def test_threads_may_share_it():
    memory = AnswerMemory(500)

    def work(start: int) -> None:
        for i in range(start, start + 2000):
            memory.add({key(i): float(i)})
            assert memory.find([key(i)]).get(key(i), float(i)) == float(i)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [0, 1000, 2000, 3000]))
    assert len(memory) == 500
