"""Attention of a ragged chunk on the CPU: new tokens over their own segment (causal) and over cached, shared prefixes.

The two parts come from torch's CPU flash kernel, which returns the log-sum-exp of each row, and merge exactly:
out = out₁ + (out₂ − out₁) · σ(lse₂ − lse₁)  (FlashDecoding; Dao et al. 2023). All segments behind one prefix form one
product, so the prefix is read once. Short segments are padded to one length and run as one batch. Key/value heads are
shared by the kernel itself (GQA), never repeated. Working memory is bounded by the rows of the chunk.
"""

from dataclasses import dataclass

import torch

from .ragged import Ragged

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# A segment joins a batch of longer ones while padding wastes no more (query, key) pairs than this, or this share.
PAD_PAIRS, PAD_SHARE = 2048, 0.25
MERGE_ROWS = 1024


@dataclass
class _Own:
    """Segments padded to one length: `rows` int64 [batch, length] (None: the rows are contiguous from `start`)."""

    segments: list[int]
    length: int
    start: int
    rows: torch.Tensor | None
    padded: torch.Tensor | None  # bool [batch, length]: real tokens; None: all


class Attention:
    """The plan of one chunk, built once and used by every layer. Index tensors live on the CPU."""

    def __init__(self, ragged: Ragged):
        self.ragged = ragged
        segments = len(ragged.starts) - 1
        self._own = _batches(ragged, list(range(segments)))
        self._own_last = _batches(ragged, ragged.answers)
        self._answer_row = {s: i for i, s in enumerate(ragged.answers)}
        self._prefix_from = ragged.starts[ragged.groups[0].first] if ragged.groups else ragged.rows

    def attend(self, q, k, v, pool_k, pool_v) -> torch.Tensor:
        """Every new token. `q` [rows, heads, dim], `k`, `v` [rows, kv_heads, dim], pools [slots, kv_heads, dim] → like `q`."""
        out = torch.empty(q.shape, dtype=q.dtype)
        first = self._prefix_from
        lse = torch.empty(q.shape[0] - first, q.shape[1])
        for batch in self._own:
            part, part_lse = _flash(*(_padded(x, batch).transpose(1, 2) for x in (q, k, v)), 0.0, True)
            _place(part.transpose(1, 2), batch, out, 0)
            if first < q.shape[0]:
                _place(part_lse.transpose(1, 2), batch, lse, first)
        for group in self.ragged.groups:
            rows = slice(self.ragged.starts[group.first], self.ragged.starts[group.last])
            part, part_lse = _over_prefix(q[rows], pool_k, pool_v, group.slots)
            _merge(out[rows], lse[rows.start - first : rows.stop - first], part, part_lse)
        return out

    def attend_last(self, q, k, v, pool_k, pool_v) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim] → like `q`."""
        out = torch.empty(q.shape, dtype=q.dtype)
        lse = torch.empty(q.shape[:2])
        for batch in self._own_last:
            index = torch.tensor([self._answer_row[s] for s in batch.segments])
            part, part_lse = _single_queries(q[index], _padded(k, batch), _padded(v, batch), batch.padded)
            out[index], lse[index] = part, part_lse
        for group in self.ragged.groups:
            index = [self._answer_row[s] for s in range(group.first, group.last) if s in self._answer_row]
            if index:
                rows = slice(index[0], index[-1] + 1)
                part, part_lse = _over_prefix(q[rows], pool_k, pool_v, group.slots)
                _merge(out[rows], lse[rows], part, part_lse)
        return out


def _batches(ragged: Ragged, segments: list[int]) -> list[_Own]:
    """Group segments of similar length."""
    batches, current = [], []
    for segment in sorted(segments, key=ragged.length, reverse=True):
        if current:
            longest, length = ragged.length(current[0]), ragged.length(segment)
            waste = longest * longest - length * length
            if waste > max(PAD_PAIRS, PAD_SHARE * length * length):
                batches.append(_own(ragged, sorted(current)))
                current = []
        current.append(segment)
    if current:
        batches.append(_own(ragged, sorted(current)))
    return batches


def _own(ragged: Ragged, segments: list[int]) -> _Own:
    lengths = torch.tensor([ragged.length(s) for s in segments])
    starts = torch.tensor([ragged.starts[s] for s in segments])
    longest = int(lengths.max())
    same = bool((lengths == longest).all())
    if same and segments == list(range(segments[0], segments[0] + len(segments))):
        return _Own(segments, longest, int(starts[0]), None, None)
    column = torch.arange(longest)
    rows = starts[:, None] + torch.minimum(column, lengths[:, None] - 1)
    return _Own(segments, longest, 0, rows, None if same else column < lengths[:, None])


def _padded(x: torch.Tensor, batch: _Own) -> torch.Tensor:
    """[rows, heads, dim] → [batch, length, heads, dim]; a padded place repeats the segment's last token."""
    if batch.rows is None:
        count = len(batch.segments) * batch.length
        return x[batch.start : batch.start + count].unflatten(0, (len(batch.segments), batch.length))
    return x.index_select(0, batch.rows.flatten()).unflatten(0, batch.rows.shape)


def _place(part: torch.Tensor, batch: _Own, out: torch.Tensor, first: int) -> None:
    """Write [batch, length, …] back to the rows of `out`, whose row 0 is row `first` of the chunk; rows before it are dropped."""
    if batch.rows is None:
        part = part.flatten(0, 1)
        rows = torch.arange(batch.start, batch.start + len(part)) if first else None
    elif batch.padded is None:
        part, rows = part.flatten(0, 1), batch.rows.flatten()
    else:
        part, rows = part[batch.padded], batch.rows[batch.padded]
    if rows is None:
        out[batch.start : batch.start + len(part)] = part
    elif first:
        inside = rows >= first
        out[rows[inside] - first] = part[inside]
    else:
        out.index_copy_(0, rows, part)


def _over_prefix(q, pool_k, pool_v, slots):
    """`q` [rows, heads, dim] over the whole prefix → output [rows, heads, dim], log-sum-exp [rows, heads]."""
    k, v = pool_k.index_select(0, slots), pool_v.index_select(0, slots)
    out, lse = _flash(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)))
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


def _single_queries(q, k, v, real):
    """One query a segment: `q` [batch, heads, dim] over `k`, `v` [batch, length, kv_heads, dim], padding masked out."""
    batch, heads, dim = q.shape
    mask = None
    if real is not None:
        mask = torch.zeros(real.shape, dtype=torch.float32).masked_fill_(~real, float("-inf"))[:, None, None, :]
    grouped = q.unflatten(1, (k.shape[2], heads // k.shape[2]))
    out, lse = _flash(grouped, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.reshape(batch, heads, dim), lse.reshape(batch, heads)


def _merge(out, lse, other, other_lse) -> None:
    """Fold `other` into `out` [rows, heads, dim] in place, in float32."""
    for start in range(0, len(out), MERGE_ROWS):
        rows = slice(start, start + MERGE_ROWS)
        weight = torch.sigmoid(other_lse[rows] - lse[rows]).unsqueeze(-1)
        out[rows] = torch.lerp(out[rows].float(), other[rows].float(), weight).to(out.dtype)
