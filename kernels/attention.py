"""Attention of a ragged chunk on the CPU: new tokens over their own segment (causal) and over cached, shared prefixes.

The two parts come from torch's CPU flash kernel, which returns the log-sum-exp of each row, and merge exactly:
out = out₁ + (out₂ − out₁) · σ(lse₂ − lse₁)  (FlashDecoding; Dao et al. 2023). All segments behind one prefix form one
product, so the prefix is read once. Short segments are padded to one length and run as one batch. Key/value heads are
shared by the kernel itself (GQA), never repeated. Working memory is bounded by the rows of the chunk.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .ragged import Ragged

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# A segment joins a batch of longer ones while padding wastes no more (query, key) pairs than this, or this share.
PAD_PAIRS, PAD_SHARE = 2048, 0.25
MERGE_ROWS = 1024


class Attention:
    """The plan of one chunk, built once and used by every layer. Index tensors live on the CPU."""

    def __init__(self, ragged: Ragged):
        self.ragged = ragged
        self._own = _batches(ragged, range(ragged.segments))
        self._own_last = _batches(ragged, ragged.answers)
        self._answer_row = {s: i for i, s in enumerate(ragged.answers)}
        self._prefix_from = ragged.starts[ragged.groups[0].first] if ragged.groups else ragged.rows

    def attend(self, qkv: torch.Tensor, heads: int, pool_k: torch.Tensor, pool_v: torch.Tensor, out: torch.Tensor):
        """Every new token. `qkv` [rows, heads + 2·kv_heads, dim], pools [slots, kv_heads, dim] → `out` [rows, heads, dim].

        `qkv` and `out` may have more rows than the chunk has tokens; those are neither read nor written.
        """
        first, rows = self._prefix_from, self.ragged.rows
        lse = torch.empty(rows - first, heads)
        sizes = (heads, pool_k.shape[1], pool_k.shape[1])
        for batch in self._own:
            q, k, v = batch.padded(qkv).transpose(1, 2).split(sizes, dim=1)
            part, part_lse = _flash(q, k, v, 0.0, True)
            batch.place(part.transpose(1, 2), out)
            if batch.behind_prefix:
                batch.place(part_lse.transpose(1, 2), lse, first)
        for group in self.ragged.groups:
            at = slice(self.ragged.starts[group.first], self.ragged.starts[group.last])
            part, part_lse = _over_prefix(qkv[at, :heads], pool_k, pool_v, group.slots)
            _merge(out[at], lse[at.start - first : at.stop - first], part, part_lse)

    def attend_last(
        self, q: torch.Tensor, kv: torch.Tensor, pool_k: torch.Tensor, pool_v: torch.Tensor
    ) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim], `kv` [rows, 2·kv_heads, dim] → like `q`."""
        out = torch.empty(q.shape, dtype=q.dtype)
        lse = torch.empty(q.shape[:2])
        for batch in self._own_last:
            index = torch.tensor([self._answer_row[s] for s in batch.segments])
            out[index], lse[index] = _single_queries(q[index], batch.padded(kv), batch.real)
        for group in self.ragged.groups:
            index = [self._answer_row[s] for s in range(group.first, group.last) if s in self._answer_row]
            if index:
                at = slice(index[0], index[-1] + 1)
                part, part_lse = _over_prefix(q[at], pool_k, pool_v, group.slots)
                _merge(out[at], lse[at], part, part_lse)
        return out


@dataclass
class _Padded:
    """Segments padded to one length. `rows` int64 [batch · length]: the row at each place (None: the rows from `start` on).

    `real` bool [batch, length] (None: all): the places that are not padding; `places` int64: the same as flat indices,
    with `targets` int64: their rows.
    """

    segments: list[int]
    length: int
    start: int
    behind_prefix: bool
    rows: torch.Tensor | None = None
    real: torch.Tensor | None = None
    places: torch.Tensor | None = None
    targets: torch.Tensor | None = None

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, heads, dim] → [batch, length, heads, dim]; a place of padding repeats the segment's last token."""
        count = len(self.segments)
        flat = x[self.start : self.start + count * self.length] if self.rows is None else x.index_select(0, self.rows)
        return flat.unflatten(0, (count, self.length))

    def place(self, part: torch.Tensor, out: torch.Tensor, first: int = 0) -> None:
        """Write `part` [batch, length, …] back to its rows of `out`, whose row 0 is row `first` of the chunk."""
        flat = part.flatten(0, 1)
        if self.rows is None:
            out[self.start - first : self.start - first + len(flat)] = flat
            return
        if self.places is not None:
            flat = flat.index_select(0, self.places)
        out.index_copy_(0, self.targets - first if first else self.targets, flat)


def _batches(ragged: Ragged, segments: Iterable[int]) -> list[_Padded]:
    """Group segments of similar length; those behind a prefix apart from those without one."""
    first = ragged.groups[0].first if ragged.groups else ragged.segments
    batches, current = [], []
    for segment in sorted(segments, key=lambda s: (s >= first, ragged.length(s)), reverse=True):
        if current and not _fit(ragged.length(current[0]), ragged.length(segment), current[0] >= first > segment):
            batches.append(_pad(ragged, sorted(current), first))
            current = []
        current.append(segment)
    return [*batches, _pad(ragged, sorted(current), first)] if current else batches


def _fit(longest: int, length: int, apart: bool) -> bool:
    waste = longest * longest - length * length
    return not apart and waste <= max(PAD_PAIRS, PAD_SHARE * length * length)


def _pad(ragged: Ragged, segments: list[int], first: int) -> _Padded:
    lengths = torch.tensor([ragged.length(s) for s in segments])
    starts = torch.tensor([ragged.starts[s] for s in segments])
    longest, behind = int(lengths.max()), segments[0] >= first
    same = bool((lengths == longest).all())
    if same and segments[-1] - segments[0] == len(segments) - 1:
        return _Padded(segments, longest, int(starts[0]), behind)
    column = torch.arange(longest)
    rows = (starts[:, None] + torch.minimum(column, lengths[:, None] - 1)).flatten()
    if same:
        return _Padded(segments, longest, 0, behind, rows, targets=rows)
    real = column < lengths[:, None]
    places = real.flatten().nonzero().squeeze(1)
    return _Padded(segments, longest, 0, behind, rows, real, places, rows[places])


def _over_prefix(q, pool_k, pool_v, slots):
    """`q` [rows, heads, dim] over the whole prefix → output [rows, heads, dim], log-sum-exp [rows, heads]."""
    k, v = pool_k.index_select(0, slots), pool_v.index_select(0, slots)
    out, lse = _flash(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)))
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


def _single_queries(q, kv, real):
    """One query a segment: `q` [batch, heads, dim] over `kv` [batch, length, 2·kv_heads, dim], padding masked out."""
    batch, heads, dim = q.shape
    k, v = kv.transpose(1, 2).chunk(2, dim=1)
    mask = None
    if real is not None:
        mask = torch.zeros(real.shape, dtype=torch.float32).masked_fill_(~real, float("-inf"))[:, None, None, :]
    out, lse = _flash(q.unflatten(1, (k.shape[1], -1)), k, v, attn_mask=mask)
    return out.reshape(batch, heads, dim), lse.reshape(batch, heads)


def _merge(out, lse, other, other_lse) -> None:
    """Fold `other` into `out` [rows, heads, dim] in place, in float32."""
    for start in range(0, len(out), MERGE_ROWS):
        rows = slice(start, start + MERGE_ROWS)
        weight = torch.sigmoid(other_lse[rows] - lse[rows]).unsqueeze(-1)
        out[rows] = torch.lerp(out[rows].float(), other[rows].float(), weight).to(out.dtype)
