"""Token sequences as a radix tree, so that a prefix shared by several is computed once."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

LEAST_SHARED = 16  # a shared run of fewer tokens is not worth a node of its own,
LEAST_SAVED = 64  # nor one that saves fewer tokens in all: its children wait for it, in a later forward pass


@dataclass(eq=False, slots=True)
class Path:
    """A sequence to be computed: its tokens (int32) in `parts`, together at least one.

    Equal parts should be the same object, which saves comparing them. `marks` are (depth in tokens, name): the KV of
    that many leading tokens is wanted afterwards under that name. They lie before the last token. `name` is found
    again at the leaf.
    """

    parts: tuple[np.ndarray, ...]
    marks: tuple[tuple[int, Hashable], ...] = ()
    name: Hashable = None
    length: int = field(init=False)

    def __post_init__(self):
        self.length = sum(map(len, self.parts))


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens behind its parent's, `start` to `end` tokens from the root.

    `leaf`: the name of the path that ends here, if one does (then there are no children). `marks`: names under which
    the KV up to the end of this node is wanted afterwards.
    """

    tokens: np.ndarray
    start: int
    children: list["Node"] = field(default_factory=list)
    leaf: Hashable = None
    marks: list[Hashable] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def build(paths: Sequence[Path], least: int = LEAST_SHARED, least_saved: int = LEAST_SAVED) -> list[Node]:
    """The roots of the tree. Every path ends in a leaf of its own with at least one token.

    Paths are taken in token order, so that each shares with its predecessor what it shares with any before. A node is
    made where at least `least` tokens are shared, and at every mark; of these all with marks stay, and the others that
    together save most, `least_saved` tokens each at least.
    """
    roots: list[Node] = []
    spine: list[Node] = []  # the nodes of the preceding path, root first
    preceding: Path | None = None
    for index in sorted(range(len(paths)), key=_token_order(paths)):
        path = paths[index]
        _keep_shared(spine, shared_length(preceding, path) if preceding else 0, path, least)
        for node in spine:
            node.marks += [name for depth, name in path.marks if depth == node.end and name not in node.marks]
        for node in _branch(path, spine[-1].end if spine else 0):
            (spine[-1].children if spine else roots).append(node)
            spine.append(node)
        preceding = path
    return _worth_their_while(roots, least_saved)


def shared_length(a: Path, b: Path) -> int:
    """How many leading tokens two paths share, leaving at least one token to each."""
    shared = 0
    for index, (left, right) in enumerate(zip(a.parts, b.parts, strict=False)):
        if left is not right:
            same = common_prefix(left, right)
            if same == min(len(left), len(right)):
                same = common_prefix(np.concatenate(a.parts[index:]), np.concatenate(b.parts[index:]))
            shared += same
            break
        shared += len(left)
    return min(shared, a.length - 1, b.length - 1)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix of two arrays."""
    size = min(len(a), len(b))
    if not size or a[0] != b[0]:  # most texts differ at once
        return 0
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _token_order(paths: Sequence[Path]) -> Callable[[int], tuple[bytes, ...]]:
    """A sort key of paths: their parts as big-endian bytes, each distinct part converted once."""
    parts = {id(part): part for path in paths for part in path.parts}
    order = {key: part.astype(">u4").tobytes() for key, part in parts.items()}
    return lambda index: tuple(order[id(part)] for part in paths[index].parts)


def _keep_shared(spine: list[Node], shared: int, path: Path, least: int) -> None:
    """Cut the spine down to what it shares with `path`, splitting nodes at its marks and at the end of what is shared."""
    for depth, worth in [(mark, 1) for mark, _ in path.marks if mark <= shared] + [(shared, least)]:
        for position, node in enumerate(spine):
            if node.start < depth < node.end and depth - node.start >= worth:
                spine.insert(position + 1, _split(node, depth))
                break
    while spine and spine[-1].end > shared:
        spine.pop()


def _split(node: Node, depth: int) -> Node:
    """Shorten `node` to `depth`; the rest of it becomes its only child."""
    lower = Node(node.tokens[depth - node.start :], depth, node.children, node.leaf, node.marks)
    node.tokens, node.children, node.leaf, node.marks = node.tokens[: depth - node.start], [lower], None, []
    return lower


def _branch(path: Path, depth: int) -> list[Node]:
    """The nodes of `path` below `depth`: one up to each mark, and its leaf."""
    tokens = _behind(path.parts, depth)
    if not any(mark > depth for mark, _ in path.marks):
        return [Node(tokens, depth, leaf=path.name)]
    ends = [*sorted({mark for mark, _ in path.marks if mark > depth}), path.length]
    nodes = [Node(tokens[start - depth : end - depth], start) for start, end in zip([depth, *ends], ends, strict=False)]
    for node in nodes:
        node.marks = [name for mark, name in path.marks if mark == node.end]
    nodes[-1].leaf = path.name
    return nodes


def _behind(parts: Sequence[np.ndarray], depth: int) -> np.ndarray:
    """The tokens from `depth` on; parts before it, which may be long, are not touched."""
    for index, part in enumerate(parts):
        if depth < len(part):
            return np.concatenate([part[depth:], *parts[index + 1 :]])
        depth -= len(part)
    return np.empty(0, np.int32)


def _worth_their_while(roots: list[Node], least_saved: int) -> list[Node]:
    """The tree without nodes that are not worth their while; their children take over their tokens.

    Of all such trees the one with the fewest tokens, where each node that nothing needs counts as `least_saved` more.
    """
    top, cost = Node(np.empty(0, np.int32), 0, roots), _Cost(least_saved)
    nodes = [top]
    for node in nodes:  # which grows meanwhile: parents stand before their children
        nodes += node.children
    for node in reversed(nodes):
        cost.of(node, 0)
    work = [top]
    while work:
        parent = work.pop()
        rest = [(child, child.tokens[:0]) for child in reversed(parent.children)]
        parent.children = []
        while rest:
            node, before = rest.pop()
            tokens = np.concatenate([before, node.tokens]) if len(before) else node.tokens
            if cost.keeps(node, len(before)):
                node.tokens, node.start = tokens, node.start - len(before)
                parent.children.append(node)
            else:
                rest += [(child, tokens) for child in reversed(node.children)]
        work += parent.children
    return top.children


class _Cost:
    """Tokens of the best tree below a node, when so many tokens of nodes above are added to it."""

    def __init__(self, least_saved: int):
        self._least_saved = least_saved
        self._known: dict[tuple[Node, int], float] = {}

    def of(self, node: Node, before: int) -> float:
        if node.leaf is not None:
            return before + len(node.tokens)
        if (node, before) not in self._known:
            self._known[node, before] = min(self._costs(node, before))
        return self._known[node, before]

    def keeps(self, node: Node, before: int) -> bool:
        if node.leaf is not None:
            return True
        kept, joined = self._costs(node, before)
        return kept <= joined

    def _costs(self, node: Node, before: int) -> tuple[float, float]:
        """With the node, and with its tokens in each child. So many tokens more below a child cost it as many at least, so
        that the second need not be known where they would be enough: few lengths are asked about."""
        tokens = before + len(node.tokens)
        kept = tokens + sum(self.of(child, 0) for child in node.children)
        if node.marks:
            return kept, math.inf
        kept += self._least_saved
        if tokens * (len(node.children) - 1) >= self._least_saved:
            return kept, math.inf
        return kept, sum(self.of(child, tokens) for child in node.children)
