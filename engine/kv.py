"""Key/value state in pages: a pool with reference counts, and nodes that hold runs of tokens as a tree."""

import torch

from quail_spark.kernels.fp8 import FP8, ScaledHeads
from quail_spark.optimizer.errors import EngineError, OutOfPagesError


class PagePool:
    """K and V of all layers for `pages · page_size` tokens.

    `keys`, `values`: [layers, pages, page_size, kv_heads, head_dim]. In a CPU's memory a page is touched only when it is
    first written. On a GPU `values` are zeros at first: kernels read whole runs of slots and give those behind a prefix
    the weight 0, and 0 · NaN would be NaN. In FP8 each head of a token has a scale besides, unless only keys
    are: then they are in units of their bounds (`kernels.scores`). Not thread-safe: one runner owns it.
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, pages: int, page_size: int, dtype, device, key_dtype=None
    ):
        """`key_dtype`: where keys are in another than `dtype`."""
        shape = (layers, pages, page_size, kv_heads, head_dim)
        self.page_size, self.total_pages = page_size, pages
        self.keys = torch.empty(shape, dtype=key_dtype or dtype, device=device)
        made = torch.empty if torch.device(device).type == "cpu" else torch.zeros
        self.values = made(shape, dtype=dtype, device=device)
        self._scales = torch.zeros(2, *shape[:-1], device=device) if dtype == FP8 else None
        self._free = list(range(pages - 1, -1, -1))

    @property
    def scaled(self) -> bool:
        """Whether keys and values are in FP8 with scales."""
        return self._scales is not None

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that a node of `tokens` tokens takes."""
        return -(-tokens // self.page_size)

    def allocate(self, tokens: int) -> list[int]:
        """Page numbers for `tokens` tokens. Raises OutOfPagesError and takes nothing when too few are free."""
        count = self.pages_for(tokens)
        if count > len(self._free):
            raise OutOfPagesError(
                f"{tokens} tokens need {count} KV pages of {self.page_size} tokens, but {len(self._free)} of "
                f"{self.total_pages} are free; release kept prefixes or raise spark.quail.engine.kvMemory"
            )
        pages = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return pages[::-1]

    def free(self, pages: list[int]) -> None:
        """Give pages back."""
        self._free.extend(reversed(pages))

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor] | tuple[ScaledHeads, ScaledHeads]:
        """K and V of one layer as [pages · page_size, kv_heads, head_dim]: row `page · page_size + offset` is a slot."""
        keys, values = self.keys[index].flatten(0, 1), self.values[index].flatten(0, 1)
        if self._scales is None:
            return keys, values
        of_keys, of_values = self._scales[:, index].flatten(1, 2)
        return ScaledHeads(keys, of_keys), ScaledHeads(values, of_values)


class KVNode:
    """The KV of a run of tokens behind `parent`. Born with one reference, and holds one on its parent.

    `tokens`: its own count; `length`: its own and all ancestors'; `pages`: its page numbers; positions of its tokens
    are `length − tokens` … `length − 1`.
    """

    __slots__ = ("_pool", "length", "pages", "parent", "references", "slots", "tokens")

    def __init__(self, pool: PagePool, tokens: int, parent: "KVNode | None" = None):
        """Takes pages from the pool; raises OutOfPagesError when it can't."""
        self.pages = pool.allocate(tokens)
        self._pool, self.tokens, self.parent = pool, tokens, parent
        self.length = tokens + (parent.length if parent else 0)
        self.references = 1
        offsets = torch.arange(len(self.pages) * pool.page_size) % pool.page_size
        first = torch.tensor(self.pages, dtype=torch.int64).repeat_interleave(pool.page_size) * pool.page_size
        self.slots = (first + offsets)[:tokens]
        if parent is not None:
            parent.retain()

    def retain(self) -> "KVNode":
        """Add a reference."""
        self._check_alive()
        self.references += 1
        return self

    def release(self) -> None:
        """Drop a reference; the last one returns the pages and drops the reference on the parent."""
        node = self
        while node is not None:
            node._check_alive()
            node.references -= 1
            if node.references:
                return
            node._pool.free(node.pages)
            node.pages = []
            node = node.parent

    def chain_slots(self) -> torch.Tensor:
        """Slots of all tokens from the root to this node's last, int64 [length]."""
        self._check_alive()
        parts, node = [], self
        while node is not None:
            parts.append(node.slots)
            node = node.parent
        return torch.cat(parts[::-1])

    def _check_alive(self) -> None:
        if self.references < 1:
            raise EngineError(f"KV of {self.tokens} tokens is used after its last release")
