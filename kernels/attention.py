"""Attention of a ragged chunk on the CPU: new tokens over their own segment (causal) and over cached, shared prefixes.

Both parts come from torch's CPU flash kernel, which returns the log-sum-exp of each row, and merge exactly:
out = out₁ + (out₂ − out₁) · σ(lse₂ − lse₁)  (FlashDecoding; Dao et al. 2023). All segments behind one prefix form one
product, so the prefix is read once. Items of similar size are padded into one call. Key/value heads are shared by the
kernel itself (GQA), never repeated, and scores are never held for more than a tile, so working memory is a few
times the chunk's rows.
"""

from collections.abc import Sequence

import torch

from .padding import PaddedRows, similar
from .ragged import Ragged

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MERGE_ROWS = 1024


class Attention:
    """The plan of one chunk, built once and used by every layer. Index tensors live on the CPU."""

    def __init__(self, ragged: Ragged):
        starts, answers, groups = ragged.starts, ragged.answers, ragged.groups
        self._rows = ragged.rows
        self._own = _own_batches(ragged, range(ragged.segments))
        self._prefixes = _prefix_batches([(starts[g.first], starts[g.last], g.slots) for g in groups])
        # In the last layer the queries are the answers: row i is answer i.
        ordinal = {segment: i for i, segment in enumerate(answers)}
        batches = similar([(1, ragged.length(s)) for s in answers])
        self._own_last = [(torch.tensor(batch), _padded(ragged, [answers[i] for i in batch])) for batch in batches]
        spans = [([ordinal[s] for s in range(g.first, g.last) if s in ordinal], g.slots) for g in groups]
        self._prefixes_last = _prefix_batches([(span[0], span[-1] + 1, slots) for span, slots in spans if span])

    def attend(self, qkv: torch.Tensor, heads: int, pool_k: torch.Tensor, pool_v: torch.Tensor, out: torch.Tensor):
        """Every new token. `qkv` [rows, heads + 2·kv_heads, dim], pools [slots, kv_heads, dim] → `out` [rows, heads, dim].

        `qkv` and `out` may have more rows than the chunk has tokens; those are neither read nor written.
        """
        lse = torch.empty(self._rows, heads) if self._prefixes else None
        sizes = (heads, pool_k.shape[1], pool_k.shape[1])
        for batch in self._own:
            q, k, v = batch.gather(qkv).transpose(1, 2).split(sizes, dim=1)
            part, part_lse = _flash(q, k, v, 0.0, True)
            batch.put(out, batch.real_rows(part.transpose(1, 2)))
            if lse is not None:
                batch.put(lse, batch.real_rows(part_lse.transpose(1, 2)))
        for prefix in self._prefixes:
            prefix.fold_in(qkv[:, :heads], pool_k, pool_v, out, lse)

    def attend_last(
        self, q: torch.Tensor, kv: torch.Tensor, pool_k: torch.Tensor, pool_v: torch.Tensor
    ) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim], `kv` [rows, 2·kv_heads, dim] → like `q`."""
        out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:2])
        for index, batch in self._own_last:
            k, v = batch.gather(kv).transpose(1, 2).chunk(2, dim=1)
            # The heads that share a key/value head are its queries.
            part, part_lse = _flash(q[index].unflatten(1, (k.shape[1], -1)), k, v, attn_mask=_mask(batch.real))
            out[index], lse[index] = part.flatten(1, 2), part_lse.flatten(1, 2)
        for prefix in self._prefixes_last:
            prefix.fold_in(q, pool_k, pool_v, out, lse)
        return out


class _PrefixBatch:
    """Queries of similar count behind prefixes of similar length, one prefix an item."""

    def __init__(self, items: Sequence[tuple[int, int, torch.Tensor]]):
        """`items`: (first row, row behind the last, slots of the prefix)."""
        self.queries = PaddedRows([first for first, _, _ in items], [last - first for first, last, _ in items])
        counts = [len(slots) for _, _, slots in items]
        keys = PaddedRows([sum(counts[:i]) for i in range(len(counts))], counts)
        self.slots = keys.gather(torch.cat([slots for _, _, slots in items]))
        self.mask = _mask(keys.real)

    def fold_in(self, q, pool_k, pool_v, out, lse) -> None:
        """Merge attention over the prefixes into `out` [rows, heads, dim] and its `lse` [rows, heads]."""
        k, v = (pool.index_select(0, self.slots.flatten()).unflatten(0, self.slots.shape) for pool in (pool_k, pool_v))
        part, part_lse = _flash(*(x.transpose(1, 2) for x in (self.queries.gather(q), k, v)), attn_mask=self.mask)
        part, part_lse = (self.queries.real_rows(x.transpose(1, 2)) for x in (part, part_lse))
        merged = merge(self.queries.take(out), self.queries.take(lse), part, part_lse)
        self.queries.put(out, merged)


def merge(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> torch.Tensor:
    """Attention over the union of two disjoint key sets: outputs [rows, heads, dim], log-sum-exps [rows, heads], float32 inside."""
    merged = torch.empty_like(out)
    for start in range(0, len(out), MERGE_ROWS):
        rows = slice(start, start + MERGE_ROWS)
        weight = torch.sigmoid(other_lse[rows] - lse[rows]).unsqueeze(-1)
        merged[rows] = torch.lerp(out[rows].float(), other[rows].float(), weight)
    return merged


def _own_batches(ragged: Ragged, segments: Sequence[int]) -> list[PaddedRows]:
    lengths = [(ragged.length(s), ragged.length(s)) for s in segments]
    return [_padded(ragged, [segments[i] for i in batch]) for batch in similar(lengths)]


def _padded(ragged: Ragged, segments: Sequence[int]) -> PaddedRows:
    return PaddedRows([ragged.starts[s] for s in segments], [ragged.length(s) for s in segments])


def _prefix_batches(items: Sequence[tuple[int, int, torch.Tensor]]) -> list[_PrefixBatch]:
    sizes = [(last - first, len(slots)) for first, last, slots in items]
    return [_PrefixBatch([items[i] for i in batch]) for batch in similar(sizes)]


def _mask(real: torch.Tensor | None) -> torch.Tensor | None:
    """[batch, keys] of what is no padding → what to add to scores [batch, heads, queries, keys]."""
    if real is None:
        return None
    return torch.zeros(real.shape).masked_fill_(~real, float("-inf"))[:, None, None, :]
