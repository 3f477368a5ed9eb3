"""Attention of a ragged chunk on the CPU: new tokens over their own segment (causal) and over cached, shared prefixes.

Every part comes from torch's CPU flash kernel, which returns the log-sum-exp of each row, and parts merge exactly:
out = out₁ + (out₂ − out₁) · σ(lse₂ − lse₁)  (FlashDecoding; Dao et al. 2023). The segments behind one prefix are the
queries of one product over it. Items of similar size are padded into one call. Key/value heads are shared by the
kernel itself (GQA), never repeated, and scores exist only in tiles, so working memory is a few times the chunk's rows.

The work is cut into pieces that can run at the same time. `each(run, pieces)` decides how: `one_by_one`, or threads.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .padding import PaddedRows, similar
from .ragged import Ragged

Each = Callable[[Callable[[Any], None], Iterable[Any]], None]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
MERGE_ROWS = 1024
# A longer segment's queries are cut into runs of this many, each over what lies before it and over itself.
LONG_ROWS = 512
# A piece with more (query, key) pairs than this is cut into several.
PIECE_PAIRS = 1 << 19


def one_by_one(run: Callable[[Any], None], pieces: Iterable[Any]) -> None:
    """In the caller's thread."""
    for piece in pieces:
        run(piece)


class Attention:
    """The plan of one chunk, built once and used by every layer. Index tensors live on the CPU."""

    def __init__(self, ragged: Ragged):
        self._rows = ragged.rows
        self._own = _own_pieces(ragged)
        starts, answers = ragged.starts, ragged.answers
        self._prefixes = _prefix_pieces([(starts[g.first], starts[g.last], g.slots) for g in ragged.groups])
        # In the last layer the queries are the answers: row i is answer i.
        batches = similar([(1, ragged.length(s)) for s in answers])
        self._own_last = [(torch.tensor(b), _padded(ragged, [answers[i] for i in b])) for b in batches]
        self._prefixes_last = _prefix_pieces(_answer_spans(ragged))

    def attend(self, qkv: torch.Tensor, heads: int, pool_k, pool_v, out: torch.Tensor, each: Each = one_by_one) -> None:
        """Every new token. `qkv` [rows, heads + 2·kv_heads, dim], pools [slots, kv_heads, dim] → `out` [rows, heads, dim].

        `qkv` and `out` may have more rows than the chunk has tokens; those are neither read nor written.
        """
        lse = torch.empty(self._rows, heads) if self._prefixes else None
        each(lambda piece: piece.run(qkv, heads, out, lse), self._own)
        if self._prefixes:
            each(lambda piece: piece.fold_in(qkv[:, :heads], pool_k, pool_v, out, lse), self._prefixes)

    def attend_last(self, q: torch.Tensor, kv: torch.Tensor, pool_k, pool_v, each: Each = one_by_one) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim], `kv` [rows, 2·kv_heads, dim] → like `q`."""
        out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:2])

        def own(piece: tuple[torch.Tensor, PaddedRows]) -> None:
            index, batch = piece
            k, v = batch.gather(kv).transpose(1, 2).chunk(2, dim=1)
            # The heads that share a key/value head are its queries.
            part, part_lse = _flash(q[index].unflatten(1, (k.shape[1], -1)), k, v, attn_mask=_mask(batch.real))
            out[index], lse[index] = part.flatten(1, 2), part_lse.flatten(1, 2)

        each(own, self._own_last)
        each(lambda piece: piece.fold_in(q, pool_k, pool_v, out, lse), self._prefixes_last)
        return out


class _OwnPiece:
    """Segments of similar length, or a run of one long segment's queries, over their own segment's tokens."""

    def __init__(self, rows: PaddedRows, before: slice | None = None):
        """`before`: the rows of the same segment that lie before the run."""
        self.rows, self.before = rows, before

    def run(self, qkv, heads: int, out, lse) -> None:
        """Write `out` [rows, heads, dim] and, where it is wanted, `lse` [rows, heads]."""
        kv_heads = (qkv.shape[1] - heads) // 2
        q, k, v = self.rows.gather(qkv).transpose(1, 2).split((heads, kv_heads, kv_heads), dim=1)
        part, part_lse = self._real(_flash(q, k, v, 0.0, True))
        if self.before is not None:
            k, v = qkv[self.before, heads:].transpose(0, 1).unsqueeze(0).chunk(2, dim=1)
            part, part_lse = merge(part, part_lse, *self._real(_flash(q, k, v)))
        self.rows.put(out, part)
        if lse is not None:
            self.rows.put(lse, part_lse)

    def _real(self, result):
        return tuple(self.rows.real_rows(x.transpose(1, 2)) for x in result)


class _PrefixPiece:
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
        merged, _ = merge(self.queries.take(out), self.queries.take(lse), part, part_lse)
        self.queries.put(out, merged)


def merge(out, lse, other, other_lse) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint key sets, and its log-sum-exp.

    Outputs [rows, heads, dim], log-sum-exps float32 [rows, heads]; computed in float32.
    """
    merged = torch.empty(out.shape, dtype=out.dtype)
    for start in range(0, len(out), MERGE_ROWS):
        rows = slice(start, start + MERGE_ROWS)
        weight = torch.sigmoid(other_lse[rows] - lse[rows]).unsqueeze(-1)
        merged[rows] = torch.lerp(out[rows].float(), other[rows].float(), weight)
    return merged, torch.logaddexp(lse, other_lse)


def _own_pieces(ragged: Ragged) -> list[_OwnPiece]:
    """Largest first, so that threads end together."""
    short = [s for s in range(ragged.segments) if ragged.length(s) <= LONG_ROWS]
    pieces = []
    for segment in range(ragged.segments):
        first, last = ragged.starts[segment], ragged.starts[segment + 1]
        if last - first > LONG_ROWS:
            for start in range(first, last, LONG_ROWS):
                rows = PaddedRows([start], [min(LONG_ROWS, last - start)])
                pieces.insert(0, _OwnPiece(rows, slice(first, start) if start > first else None))
    for batch in similar([(ragged.length(s), ragged.length(s)) for s in short]):
        most = max(ragged.length(short[i]) for i in batch)
        for part in _cut(batch, max(1, PIECE_PAIRS // most**2)):
            pieces.append(_OwnPiece(_padded(ragged, [short[i] for i in part])))
    return pieces


def _padded(ragged: Ragged, segments: Sequence[int]) -> PaddedRows:
    return PaddedRows([ragged.starts[s] for s in segments], [ragged.length(s) for s in segments])


def _prefix_pieces(items: Sequence[tuple[int, int, torch.Tensor]]) -> list[_PrefixPiece]:
    pieces = []
    for batch in similar([(last - first, len(slots)) for first, last, slots in items]):
        rows, keys = (
            max(size) for size in zip(*((items[i][1] - items[i][0], len(items[i][2])) for i in batch), strict=True)
        )
        if len(batch) == 1:
            first, last, slots = items[batch[0]]
            step = max(32, PIECE_PAIRS // keys)
            pieces += [_PrefixPiece([(at, min(at + step, last), slots)]) for at in range(first, last, step)]
        else:
            parts = _cut(batch, max(1, PIECE_PAIRS // (rows * keys)))
            pieces += [_PrefixPiece([items[i] for i in part]) for part in parts]
    return pieces


def _answer_spans(ragged: Ragged) -> list[tuple[int, int, torch.Tensor]]:
    """For each prefix that an answer lies behind: its first answer, the answer behind its last, its slots."""
    ordinal = {segment: i for i, segment in enumerate(ragged.answers)}
    spans = [([ordinal[s] for s in range(g.first, g.last) if s in ordinal], g) for g in ragged.groups]
    return [(span[0], span[-1] + 1, group.slots) for span, group in spans if span]


def _cut(items: list[int], most: int) -> list[list[int]]:
    """Equal parts of at most `most` items."""
    parts = -(-len(items) // most)
    size = -(-len(items) // parts)
    return [items[at : at + size] for at in range(0, len(items), size)]


def _mask(real: torch.Tensor | None) -> torch.Tensor | None:
    """[batch, keys] of what is no padding → what to add to scores [batch, heads, queries, keys]."""
    if real is None:
        return None
    return torch.zeros(real.shape).masked_fill_(~real, float("-inf"))[:, None, None, :]
