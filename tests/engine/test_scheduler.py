"""The scheduler on a runner that only keeps books: every leaf gets its own tokens, whatever the pages and the budget."""

import random

import numpy as np
import pytest
import torch

from quail_spark.engine.kv import KVNode, PagePool
from quail_spark.engine.prefix_tree import Path, build
from quail_spark.engine.runner import Pass, Segment
from quail_spark.engine.scheduler import RECOVERY, Scheduler, Task
from quail_spark.optimizer.errors import OutOfMemoryError


class Bookkeeper:
    """Logits are a hash of all tokens from the root; KV pages are taken from a real pool."""

    def __init__(self, pages: int, page_size: int, most: int = 1 << 30):
        """`most` tokens a pass find memory."""
        self.page_pool = PagePool(1, 1, 1, pages, page_size, torch.float32, "cpu")
        self.before: dict[KVNode | None, tuple[int, ...]] = {None: ()}
        self.passes: list[int] = []
        self.fails_at, self.most, self.refused = None, most, 0

    def launch(self, segments: list[Segment]) -> Pass:
        if sum(len(s.tokens) for s in segments) > self.most:
            self.refused += 1
            self.passes.clear()  # all of them run again
            raise OutOfMemoryError("no memory")
        if len(self.passes) == self.fails_at:
            raise RuntimeError("broken on purpose")
        self.passes.append(sum(len(s.tokens) for s in segments))
        logits, nodes = [], []
        for s in segments:
            assert len(s.tokens) >= 1 and 0 <= s.keep <= len(s.tokens)
            tokens = self.before[s.parent] + tuple(s.tokens.tolist())
            assert s.parent is None or s.parent.references > 0
            if s.answer:
                logits.append([hash(tokens) % 9973])
            kept = len(tokens) - len(s.tokens) + s.keep
            nodes.append(KVNode(self.page_pool, s.keep, s.parent) if s.keep else None)
            if s.keep:
                self.before[nodes[-1]] = tokens[:kept]
        return Pass(nodes, lambda: (np.array(logits, np.float32).reshape(-1, 1), 0.5))

    def held(self) -> int:
        return self.page_pool.total_pages - self.page_pool.free_pages


def random_paths(rng: random.Random, count: int, marks: bool) -> list[Path]:
    sequences = {(1, 2, 3)}
    while len(sequences) < count:
        stem = rng.choice(sorted(sequences))
        stem = stem[: rng.randrange(len(stem) + 1)]
        sequences.add((*stem, *(rng.randrange(50) for _ in range(rng.choice([1, 3, 20, 60])))))
    paths = []
    for name, sequence in enumerate(sorted(sequences, key=lambda _: rng.random())):
        depth = rng.randrange(1, len(sequence)) if marks and len(sequence) > 1 and rng.random() < 0.3 else 0
        paths.append(Path((np.array(sequence, np.int32),), ((depth, sequence[:depth]),) if depth else (), name))
    return paths


def check(outcome, paths: list[Path], runner: Bookkeeper) -> None:
    logits, seconds = outcome.logits()
    assert seconds == 0.5 * len(runner.passes)
    for path in paths:
        assert logits[path.name] == hash(tuple(path.parts[0].tolist())) % 9973
    assert outcome.fresh_tokens == sum(runner.passes)
    for name, kv in outcome.kept.items():
        assert runner.before[kv] == name and kv.length == len(name)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("budget", "pages"), [(10_000, 10_000), (32, 10_000), (32, 12), (10_000, 12), (7, 3), (64, 1)])
def test_every_leaf_is_computed(budget, pages, seed):
    rng = random.Random(seed)
    runner = Bookkeeper(pages, page_size=5)
    paths = random_paths(rng, 40, marks=seed % 2 == 1)
    outcome = Scheduler(runner, budget).run([Task(node) for node in build(paths, 8, 0)])
    check(outcome, paths, runner)
    if pages == 10_000:
        assert max(runner.passes) <= budget and outcome.recomputed_tokens == 0
        assert outcome.kept.keys() == {name for path in paths for _, name in path.marks}
    for kv in outcome.kept.values():
        kv.release()
    assert runner.held() == 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("pages", [10_000, 40])
def test_trees_behind_kept_kv(pages, seed):
    rng = random.Random(seed)
    runner = Bookkeeper(pages, page_size=5)
    scheduler = Scheduler(runner, 64)
    (root,) = runner.launch([Segment(np.arange(100, 150, dtype=np.int32), keep=50, answer=False)]).nodes
    paths = random_paths(rng, 30, marks=False)
    outcome = scheduler.run([Task(node, root) for node in build(paths, 8, 0)])
    logits, seconds = outcome.logits()
    assert seconds == 0.5 * (len(runner.passes) - 1)
    for path in paths:
        assert logits[path.name] == hash((*range(100, 150), *path.parts[0].tolist())) % 9973
    root.release()
    assert runner.held() == 0


@pytest.mark.parametrize("pages", [10_000, 12])
def test_an_error_releases_everything(pages):
    for fails_at in range(60):
        runner = Bookkeeper(pages, page_size=5)
        runner.fails_at = fails_at
        paths = random_paths(random.Random(3), 40, marks=True)
        try:
            outcome = Scheduler(runner, 40).run([Task(node) for node in build(paths, 8, 0)])
        except RuntimeError:
            assert runner.held() == 0
        else:
            assert fails_at == len(runner.passes) > 5
            for kv in outcome.kept.values():
                kv.release()
            return
    pytest.fail("it never ran to the end")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("budget", "pages"), [(10_000, 10_000), (500, 10_000), (500, 60), (10_000, 30)])
def test_passes_that_find_no_memory_are_made_smaller(budget, pages, seed):
    rng = random.Random(seed)
    most = rng.choice([130, 200])
    runner = Bookkeeper(pages, page_size=5, most=most)
    scheduler = Scheduler(runner, budget)
    for again in (False, True):  # then passes are small from the start
        paths = random_paths(rng, 60, marks=seed % 2 == 1)
        runner.passes.clear()
        runner.refused = 0
        outcome = scheduler.run([Task(node) for node in build(paths, 8, 0)])
        check(outcome, paths, runner)
        assert max(runner.passes) <= most
        assert pages < 100 or (runner.refused == 0) == again  # with few pages passes are small already
        for kv in outcome.kept.values():
            kv.release()
        assert runner.held() == 0


def test_passes_grow_again_when_memory_is_back():
    runner = Bookkeeper(10_000, page_size=5, most=100)
    scheduler = Scheduler(runner, 1000)
    tasks = [Task(node) for node in build([Path((np.full(50, i, np.int32),), (), i) for i in range(40)])]
    scheduler.run(tasks)
    assert max(runner.passes) <= 100 and runner.refused
    runner.most, sizes = 1 << 30, []
    while (not sizes or sizes[-1] < 1000) and len(sizes) < RECOVERY:
        runner.passes.clear()
        scheduler.run(tasks)
        sizes.append(max(runner.passes))
    assert sizes == sorted(sizes) and sizes[-1] == 1000


def test_a_prompt_beyond_the_budget_without_pages_makes_no_pass_smaller():
    """There is nothing to compute it in parts with; smaller passes would not help, and stay with all others."""
    runner = Bookkeeper(2, page_size=5, most=100)
    scheduler = Scheduler(runner, 80)
    with pytest.raises(OutOfMemoryError):
        scheduler.run([Task(node) for node in build([Path((np.arange(200, dtype=np.int32),), (), 0)])])
    scheduler.run([Task(node) for node in build([Path((np.full(40, i, np.int32),), (), i) for i in range(4)])])
    assert runner.refused == 1 and runner.passes == [80, 80]


def test_memory_that_is_never_found_is_the_error():
    runner = Bookkeeper(10_000, page_size=5, most=20)
    paths = [Path((np.full(500, i, np.int32),), (), i) for i in range(3)]
    with pytest.raises(OutOfMemoryError, match="no memory"):
        Scheduler(runner, 1000).run([Task(node) for node in build(paths)])
    assert runner.held() == 0 and 1 < runner.refused < 10


def test_a_chain_deeper_than_the_recursion_limit():
    text = np.arange(20_000, dtype=np.int32)
    paths = [Path((text[: 16 * i], np.array([-1], np.int32)), name=i) for i in range(1, 1100)]
    runner = Bookkeeper(20_000, page_size=5)
    outcome = Scheduler(runner, 4096).run([Task(node) for node in build(paths, 8, 0)])
    assert len(outcome.logits()[0]) == len(paths) and outcome.fresh_tokens == 16 * 1099 + 1099
    assert runner.held() == 0


def test_no_tasks():
    assert Scheduler(Bookkeeper(4, 5), 16).run([]).logits() == ({}, 0.0)


def test_marks_are_dropped_not_failed_when_pages_are_short():
    runner = Bookkeeper(2, page_size=5)
    paths = [Path((np.full(30, i, np.int32),), ((20, f"document {i}"),), i) for i in range(4)]
    outcome = Scheduler(runner, 64).run([Task(node) for node in build(paths)])
    assert len(outcome.logits()[0]) == 4 and outcome.kept == {} and outcome.recomputed_tokens == 0
    assert runner.held() == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_pass_is_much_smaller_than_it_must_be(seed):
    """Leaves that share nothing: full passes and a rest would be slow; a chunk that ends early still leaves half of the budget."""
    rng, longest, budget = random.Random(seed), 20, 100
    runner = Bookkeeper(10_000, page_size=5)
    lengths = [rng.randint(1, longest) for _ in range(rng.randint(1, 60))]
    paths = [Path((np.full(n, i, np.int32),), (), i) for i, n in enumerate(lengths)]
    Scheduler(runner, budget).run([Task(node) for node in build(paths, 8, 0)])
    assert sum(runner.passes) == sum(lengths) and max(runner.passes) <= budget
    if sum(lengths) > budget:
        assert min(runner.passes) > budget / 2 - longest
    else:
        assert len(runner.passes) == 1


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_parts_are_the_passes_of_one_level(seed, marks):
    """Also where the beginning of each is kept, as a filter keeps documents. With more levels there is one part."""
    rng, budget = random.Random(seed), 100
    lengths = [rng.randint(2, 40) for _ in range(30)]
    texts = [np.full(n, i, np.int32) for i, n in enumerate(lengths)]
    paths = [Path((t,), ((len(t) - 1, i),) if marks else (), i) for i, t in enumerate(texts)]
    together, apart = Bookkeeper(10_000, page_size=5), Bookkeeper(10_000, page_size=5)
    whole = Scheduler(together, budget).run([Task(node) for node in build(paths, 8, 0)])
    scheduler = Scheduler(apart, budget)
    parts = scheduler.parts([Task(node) for node in build(paths, 8, 0)])
    outcomes = [scheduler.run(part) for part in parts]
    assert apart.passes == together.passes and len(parts) == len(apart.passes)
    logits = {leaf: value for outcome in outcomes for leaf, value in outcome.logits()[0].items()}
    assert logits == whole.logits()[0] and len(logits) == len(lengths)
    assert {name for outcome in outcomes for name in outcome.kept} == (set(range(30)) if marks else set())
    stem = [Path((np.full(50, 77, np.int32), t), (), i) for i, t in enumerate(texts)]
    assert len(scheduler.parts([Task(node) for node in build(stem, 8, 0)])) == 1
