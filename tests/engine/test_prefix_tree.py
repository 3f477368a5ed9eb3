"""The radix tree against a count of distinct prefixes."""

import random

import numpy as np
import pytest

from quail_spark.engine.prefix_tree import Path, build, common_prefix, shared_length


def random_paths(rng: random.Random, count: int) -> list[Path]:
    """Distinct sequences over few tokens, cut into three parts; equal parts are mostly the same object."""
    parts: dict[tuple, np.ndarray] = {}

    def part(tokens: tuple) -> np.ndarray:
        array = np.array(tokens, np.int32)
        return array if rng.random() < 0.2 else parts.setdefault(tokens, array)

    stems = [tuple(rng.randrange(3) for _ in range(rng.randrange(0, 30))) for _ in range(5)]
    found = {}
    while len(found) < count:
        stem = rng.choice(stems)[: rng.randrange(31)]
        sections = (stem, rng.choice(stems), (*(rng.randrange(3) for _ in range(rng.randrange(4))), 300))
        found[sum(sections, ())] = sections
    return [Path(tuple(map(part, sections)), name=name) for name, sections in enumerate(found.values())]


def sequence(path: Path) -> tuple[int, ...]:
    return tuple(np.concatenate(path.parts).tolist())


def walk(nodes, before=()):
    """(tokens from the root to the node's end, node) of every node."""
    for node in nodes:
        tokens = before + tuple(node.tokens.tolist())
        yield tokens, node
        yield from walk(node.children, tokens)


def shareable_prefixes(paths: list[Path]) -> int:
    """Naive: tokens to compute when every distinct prefix is computed once; a last token is never shared."""
    prefixes = {sequence(path)[:end] for path in paths for end in range(1, path.length)}
    return len(prefixes) + len(paths)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("least", [1, 4, 16])
def test_every_path_ends_in_its_own_leaf(seed, least):
    paths = random_paths(random.Random(seed), 40)
    leaves = {node.leaf: tokens for tokens, node in walk(build(paths, least)) if node.leaf is not None}
    assert leaves == {path.name: sequence(path) for path in paths}
    for tokens, node in walk(build(paths, least)):
        assert len(node.tokens) > 0 and node.end == len(tokens)
        assert (node.leaf is None) == bool(node.children)


@pytest.mark.parametrize("seed", range(20))
def test_each_distinct_prefix_is_computed_once(seed):
    rng = random.Random(seed)
    paths = random_paths(rng, 40)
    # whole sequences as one part: parts of differing shape may hide what crosses their bounds
    paths = [Path((np.concatenate(path.parts),), name=path.name) for path in paths]
    tokens = sum(len(node.tokens) for _, node in walk(build(paths, least=1, least_saved=0)))
    assert tokens == shareable_prefixes(paths)


@pytest.mark.parametrize("seed", range(20))
def test_short_shared_runs_get_no_node(seed):
    paths = random_paths(random.Random(seed), 40)
    roots = build(paths, least=8)
    assert all(node.leaf is not None or len(node.tokens) >= 8 for node in roots)
    assert sum(len(node.tokens) for _, node in walk(roots)) <= sum(path.length for path in paths)


@pytest.mark.parametrize("seed", range(20))
def test_a_node_ends_at_every_mark(seed):
    rng = random.Random(seed)
    paths = random_paths(rng, 30)
    wanted = set()
    for path in paths:
        depths = sorted({rng.randrange(1, path.length) for _ in range(rng.randrange(3)) if path.length > 1})
        path.marks = tuple((depth, sequence(path)[:depth]) for depth in depths)
        wanted |= {name for _, name in path.marks}
    marked = {}
    for tokens, node in walk(build(paths, least=16)):
        for name in node.marks:
            assert name == tokens
            marked.setdefault(name, []).append(node)
    assert marked.keys() == wanted


@pytest.mark.parametrize("seed", range(20))
def test_a_node_without_marks_saves_enough(seed):
    for _, node in walk(build(random_paths(random.Random(seed), 40), least=4, least_saved=30)):
        assert node.leaf is not None or len(node.tokens) * (len(node.children) - 1) >= 30


def test_a_node_counts_the_children_of_nodes_that_save_too_little():
    frame = np.arange(16, dtype=np.int32)
    tails = [[100, 1], [100, 2], [200], [300], [400]]  # two share one token more, which is no node's worth
    paths = [Path((frame, np.array([*tail, i], np.int32)), name=i) for i, tail in enumerate(tails)]
    (root,) = build(paths, least=16, least_saved=16 * 4)
    assert root.end == 16 and sorted(child.leaf for child in root.children) == [0, 1, 2, 3, 4]


def cheapest(node, before: int, least_saved: int) -> int:
    """Naive: tokens of the best tree, and `least_saved` for each node of it that is no leaf and has no mark."""
    tokens = before + len(node.tokens)
    if node.leaf is not None:
        return tokens
    kept = tokens + sum(cheapest(child, 0, least_saved) for child in node.children)
    if node.marks:
        return kept
    return min(kept + least_saved, sum(cheapest(child, tokens, least_saved) for child in node.children))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("least_saved", [1, 12, 60])
def test_no_choice_of_nodes_is_cheaper(seed, least_saved):
    paths = random_paths(random.Random(seed), 40)
    for path in paths[::3]:
        path.marks = ((path.length // 2, path.name),) * (path.length > 1)
    every = build(paths, least=2, least_saved=0)
    best = build(paths, least=2, least_saved=least_saved)
    inner = [node for _, node in walk(best) if node.leaf is None and not node.marks]
    spent = sum(len(node.tokens) for _, node in walk(best)) + least_saved * len(inner)
    assert spent == sum(cheapest(root, 0, least_saved) for root in every)
    assert {node.leaf: tokens for tokens, node in walk(best) if node.leaf is not None} == {
        path.name: sequence(path) for path in paths
    }


def test_nested_texts_make_a_deep_tree():
    """Each is the beginning of the next: the tree is as deep as there are texts."""
    trace = np.arange(60_000, dtype=np.int32)
    paths = [Path((trace[: 20 * n], np.array([70_000 + n], np.int32)), name=n) for n in range(1, 3000)]
    nodes = build(paths)
    work, leaves = list(nodes), []
    while work:
        node = work.pop()
        work += node.children
        leaves += [] if node.leaf is None else [node.leaf]
    assert sorted(leaves) == [*range(1, 3000)]


def test_extensions_form_a_chain():
    trace = np.arange(500, dtype=np.int32)
    tail = np.array([900, 901], np.int32)
    paths = [Path((trace[:size], tail), name=size) for size in (400, 100, 300, 200, 500)]
    nodes = build(paths)
    assert sum(len(node.tokens) for _, node in walk(nodes)) == 500 + 5 * 2
    assert len(nodes) == 1


def test_nothing_shared_costs_nothing():
    paths = [Path((np.array([i, 7, 8], np.int32),), name=i) for i in range(5)]
    assert all(node.leaf is not None for node in build(paths)) and len(build(paths)) == 5
    assert build([]) == []


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([5], [6], 0), ([4], [4], 1)],
)
def test_common_prefix(a, b, length):
    assert common_prefix(np.array(a, np.int32), np.array(b, np.int32)) == length


def test_shared_length_crosses_parts_and_leaves_a_token():
    def path(*parts):
        return Path(tuple(np.array(part, np.int32) for part in parts))

    assert shared_length(path([1, 2], [3, 4]), path([1], [2, 3, 5])) == 3
    assert shared_length(path([1, 2], [3]), path([1, 2, 3], [4])) == 2
