"""Documents whose KV a later operator of the plan will need: a join's anchors after a filter, or after another join."""

from collections.abc import Iterable

from .kv import KVNode, PagePool
from .rendering import PromptQuestion

MOST_DROPPED = 1_000_000  # keys remembered of documents that gave way
SLOW_DOWN = 1 / 16_000  # attention makes a token behind this many others cost about twice


class Retained:
    """KV by document key, shared by all sessions of an evaluator. Used under the model lock.

    A session whose operator retains puts documents here; the session that asks about one takes it. When pages run out,
    what costs least to compute again for each page goes first.
    """

    def __init__(self, pool: PagePool):
        self._pool = pool
        self._nodes: dict[bytes, KVNode] = {}
        self._dropped: dict[bytes, None] = {}  # for lack of pages, oldest first

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._nodes

    def put(self, key: bytes, node: KVNode) -> None:
        """Keep another reference of `node`."""
        if key not in self._nodes:
            self._nodes[key] = node.retain()

    def take(self, key: bytes) -> KVNode | None:
        """The node, whose reference becomes the caller's."""
        return self._nodes.pop(key, None)

    def make_room(self, pages: int) -> None:
        """Drop documents, the cheapest first, until `pages` are free or none is left."""
        for key in sorted(self._nodes, key=lambda key: worth(self._nodes[key])):
            if self._pool.free_pages >= pages:
                return
            self._nodes.pop(key).release()
            self._dropped[key] = None
        while len(self._dropped) > MOST_DROPPED:
            self._dropped.pop(next(iter(self._dropped)))

    def regret(self, questions: Iterable[PromptQuestion]) -> int:
        """Tokens of these questions' documents that are computed again since they had to give way; each counts once."""
        if not self._dropped:
            return 0
        lengths = {q.document_key: len(q.parts[0]) for q in questions if q.document_key in self._dropped}
        for key in lengths:
            del self._dropped[key]
        return sum(lengths.values())

    def clear(self) -> None:
        """Drop all."""
        while self._nodes:
            self._nodes.popitem()[1].release()


def worth(node: KVNode) -> float:
    """Cost of computing a node again by the pages it takes: more tokens a page and a longer way behind make it dearer."""
    return node.tokens / len(node.pages) * (1 + node.length * SLOW_DOWN)
