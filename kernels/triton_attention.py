"""Triton kernel for attention of a ragged chunk: one pass over the shared prefix in the cache and the own new tokens.

A program takes a tile of neighbouring queries for one key/value head; the heads that share it (GQA) are further rows of
the tile. Queries of many segments behind one prefix fill a tile together, so the prefix is read once for all of them.
Both parts run through one online softmax (FlashAttention; Dao 2023): there is nothing to merge afterwards.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .fp8 import BLOCK, Quantised
from .ragged import PrefixGroup, Ragged
from .triton_plan import TilePlan, plan_all, plan_answers

PLAIN, BY_BLOCK = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def _fold(q, k, v, seen, total, top, out, factor, MASK: tl.constexpr, BOUNDED: tl.constexpr):
    """One block of keys into the running softmax. `factor`: scale · log2(e); `top`, the highest score so far, is in base 2."""
    scores = tl.dot(q, tl.trans(k))
    if MASK:
        scores = tl.where(seen, scores, float("-inf"))
    if BOUNDED:
        weights = tl.exp2(scores * factor)
    else:
        highest = tl.maximum(top, tl.max(scores, 1) * factor)
        weights = tl.exp2(scores * factor - highest[:, None])
        shrink = tl.exp2(top - highest)
        total = total * shrink
        out = out * shrink[:, None]
        top = highest
    total += tl.sum(weights, 1)
    out = tl.dot(weights.to(v.dtype), v, out)
    return total, top, out


@triton.jit
def attention_kernel(
    q, q_stride, own, pool_k, pool_v, tiles, lows, highs, run_starts, run_counts, values, value_stride, scales, scale_stride, factor,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    RUN: tl.constexpr, PREFIX: tl.constexpr, BOUNDED: tl.constexpr, MODE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tile = (first query, queries, first run, first partial run, end of runs, –, –, –); see `triton_plan`.

    Query i sees own rows `lows[i]` … `highs[i]`. Run r is `run_counts[r]` ≤ RUN neighbouring slots from `run_starts[r]`;
    all but the partial ones are RUN long. `own` [·, 2·KV_HEADS·DIM] and the pools [·, KV_HEADS·DIM] are tensor descriptors.
    """
    head = tl.program_id(0) % KV_HEADS
    tile = tiles + (tl.program_id(0) // KV_HEADS) * 8
    first, count = tl.load(tile), tl.load(tile + 1)
    flat = tl.arange(0, ROWS)
    query, real = first + flat // GROUP, flat // GROUP < count
    column = tl.arange(0, DIM)
    lane = (head * GROUP + flat % GROUP) * DIM
    packed = tl.load(
        q + (query.to(tl.int64) * q_stride + lane)[:, None] + column[None, :], mask=real[:, None], other=0.0
    )
    total, out = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)
    none = tl.zeros([1, 1], tl.int1)

    if PREFIX:
        begin, partial, end = tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
        for run in tl.range(begin, partial, num_stages=STAGES):
            slot = tl.load(run_starts + run)
            k = pool_k.load([slot, head * DIM])
            v = pool_v.load([slot, head * DIM])
            total, top, out = _fold(packed, k, v, none, total, top, out, factor, False, BOUNDED)
        for run in tl.range(partial, end, num_stages=1):
            slot = tl.load(run_starts + run)
            seen = tl.arange(0, RUN) < tl.load(run_counts + run)
            k = pool_k.load([slot, head * DIM])
            # Slots behind the run may never have been written, and 0 · NaN is NaN.
            v = tl.where(seen[:, None], pool_v.load([slot, head * DIM]), 0.0)
            total, top, out = _fold(packed, k, v, seen[None, :], total, top, out, factor, True, BOUNDED)

    low = tl.load(lows + query, mask=real, other=-1)
    high = tl.load(highs + query, mask=real, other=-1)
    key, last = tl.min(tl.where(real, low, 2147483647)), tl.max(high)
    shared = tl.where(tl.max(low) == key, tl.min(tl.where(real, high, 2147483647)) + 1, key)  # seen by all up to here
    unmasked = key + (shared - key) // KEYS * KEYS
    for at in tl.range(key, unmasked, KEYS, num_stages=STAGES):
        k = own.load([at, head * DIM])
        v = own.load([at, (KV_HEADS + head) * DIM])
        total, top, out = _fold(packed, k, v, none, total, top, out, factor, False, BOUNDED)
    for at in tl.range(unmasked, last + 1, KEYS, num_stages=STAGES):
        row = at + tl.arange(0, KEYS)
        seen = (row[None, :] >= low[:, None]) & (row[None, :] <= high[:, None])
        k = own.load([at, head * DIM])
        v = own.load([at, (KV_HEADS + head) * DIM])
        total, top, out = _fold(packed, k, v, seen, total, top, out, factor, True, BOUNDED)

    out = out / tl.where(real, total, 1.0)[:, None]
    target = values + (query.to(tl.int64) * value_stride + lane)[:, None] + column[None, :]
    if MODE == PLAIN:
        tl.store(target, out.to(values.dtype.element_ty), mask=real[:, None])
    else:
        largest = tl.maximum(tl.max(tl.abs(out), 1), 1e-12)
        tl.store(scales + (head * GROUP + flat % GROUP).to(tl.int64) * scale_stride + query, largest / 448.0, mask=real)
        tl.store(target, (out * (448.0 / largest)[:, None]).to(tl.float8e4nv), mask=real[:, None])


@dataclass(frozen=True)
class Launch:
    """`rows` of a tile (queries · heads that share a key), `keys` a step of own rows, `run` slots a step of the prefix."""

    rows: int
    keys: int
    run: int
    warps: int
    stages: int


# The fastest of some forty on an H200; see docs/gpu-notes.md.
OWN = Launch(rows=64, keys=32, run=32, warps=4, stages=3)
SHARED = Launch(rows=128, keys=64, run=64, warps=4, stages=2)
NARROW = Launch(rows=16, keys=64, run=64, warps=4, stages=2)


def can_attend(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether these kernels serve the shape; the reference serves all."""
    return head_dim in (16, 32, 64, 128, 256) and heads % kv_heads == 0 and heads // kv_heads <= SHARED.rows


def scores_are_bounded(q_norm: torch.Tensor, k_norm: torch.Tensor) -> bool:
    """Whether head norms (float32 [head_dim] each) keep every score so small that softmax needs no running maximum.

    After the norm |q| ≤ √dim · max|w|, so |q·k| / √dim ≤ √dim · max|w_q| · max|w_k|; 2 to that power, summed over
    a context, must stay a float32.
    """
    bound = math.sqrt(q_norm.numel()) * q_norm.abs().max() * k_norm.abs().max() * math.log2(math.e)
    return bool(bound < 100)


class TritonAttention:
    """The plan of one chunk on `device`, used by every layer: the interface and the results of `attention.Attention`."""

    def __init__(
        self,
        ragged: Ragged,
        heads: int,
        kv_heads: int,
        device,
        bounded: bool = False,
        own: Launch = OWN,
        shared: Launch = SHARED,
    ):
        """`bounded`: what `scores_are_bounded` said of every layer."""
        self.rows, self.heads, self.kv_heads, self.bounded = ragged.rows, heads, kv_heads, bounded
        self._launches = own, shared
        group = heads // kv_heads
        self._slots = _scattered(ragged, shared.run)
        if self._slots is not None:
            ragged = _compacted(ragged)
            self._slots = self._slots.to(device, non_blocking=True)
        self._all = _Tables(plan_all(ragged, (own.rows // group, shared.rows // group), shared.run), device)
        self._last = _Tables(plan_answers(ragged, shared.rows // group, shared.run), device)

    def attend(
        self, qkv: torch.Tensor, heads: int, pool_k: torch.Tensor, pool_v: torch.Tensor, out: torch.Tensor | Quantised
    ) -> None:
        """Every new token. `qkv` [rows, heads + 2·kv_heads, dim], pools [slots, kv_heads, dim] → `out` [rows, heads, dim].

        `out` may be `Quantised` by block instead, [rows, heads · dim] with dim 128: one head has one scale. `qkv` and
        `out` may have more rows than the chunk has tokens; those are neither read nor written.
        """
        own, shared = self._launches
        self._run(self._all, qkv, qkv[:, heads:], pool_k, pool_v, out, own, shared)

    def attend_last(
        self, q: torch.Tensor, kv: torch.Tensor, pool_k: torch.Tensor, pool_v: torch.Tensor
    ) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim], `kv` [rows, 2·kv_heads, dim] → like `q`."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        narrow = Launch(
            max(NARROW.rows, triton.next_power_of_2(self.heads // self.kv_heads)),
            NARROW.keys,
            self._launches[1].run,
            NARROW.warps,
            NARROW.stages,
        )
        self._run(self._last, q, kv, pool_k, pool_v, out, narrow, self._launches[1])
        return out

    def _run(self, tables: "_Tables", q, own, pool_k, pool_v, out, plain: Launch, shared: Launch) -> None:
        dim = q.shape[-1]
        if self._slots is not None:
            pool_k, pool_v = (pool.index_select(0, self._slots) for pool in (pool_k, pool_v))
        by_block = isinstance(out, Quantised)
        assert q.stride(1) == own.stride(1) == dim and q.stride(2) == own.stride(2) == 1
        assert not by_block or dim == BLOCK
        values, scales = out if by_block else (out, out)
        flat = (
            own[: self.rows].flatten(1)
            if own.is_contiguous()
            else torch.as_strided(own, (self.rows, 2 * self.kv_heads * dim), (own.stride(0), 1))
        )
        for first, count, launch, prefix in (
            (0, tables.plain, plain, False),
            (tables.plain, tables.count - tables.plain, shared, True),
        ):
            if not count:
                continue
            own_keys = TensorDescriptor(flat, flat.shape, flat.stride(), [launch.keys, dim])
            pools = [_slots(pool, launch.run, dim) if prefix else own_keys for pool in (pool_k, pool_v)]
            attention_kernel[(count * self.kv_heads,)](
                q, q.stride(0), own_keys, *pools, tables.tiles[first:], tables.lows, tables.highs, tables.run_starts, tables.run_counts,
                values, values.stride(0), scales, scales.stride(1) if by_block else 0, math.log2(math.e) / math.sqrt(dim),
                GROUP=self.heads // self.kv_heads, KV_HEADS=self.kv_heads, DIM=dim, ROWS=launch.rows, KEYS=launch.keys, RUN=launch.run,
                PREFIX=prefix, BOUNDED=self.bounded, MODE=int(by_block), STAGES=launch.stages, num_warps=launch.warps,
            )  # fmt: skip


def _scattered(ragged: Ragged, run: int) -> torch.Tensor | None:
    """All slots of the prefixes one after another, if they lie in runs so short that it pays to copy them together first."""
    slots = [g.slots for g in ragged.groups]
    if not slots:
        return None
    breaks = sum(1 + int((s.diff() != 1).sum()) for s in slots)
    tokens = sum(map(len, slots))
    return torch.cat(slots) if tokens / breaks < run / 2 and breaks > len(slots) else None


def _compacted(ragged: Ragged) -> Ragged:
    """The same chunk over pools that hold just its prefixes, in order."""
    groups, at = [], 0
    for g in ragged.groups:
        groups.append(PrefixGroup(g.first, g.last, torch.arange(at, at + len(g.slots))))
        at += len(g.slots)
    return Ragged(ragged.starts, groups, ragged.answers)


class _Tables:
    """A `TilePlan` on the device, sent in one copy."""

    def __init__(self, plan: TilePlan, device):
        parts = [plan.tiles.ravel(), plan.lows, plan.highs, plan.run_starts, plan.run_counts]
        parts = [np.pad(part, (0, -len(part) % 4)) for part in parts]  # 16 bytes
        packed = torch.from_numpy(np.concatenate(parts))
        if torch.device(device).type == "cuda":
            packed = packed.pin_memory()
        sent = packed.to(device, non_blocking=True).split([len(part) for part in parts])
        self.plain, self.count = plan.plain, len(plan.tiles)
        self.tiles = sent[0].view(-1, plan.tiles.shape[1])
        self.lows, self.highs, self.run_starts, self.run_counts = sent[1:]


def _slots(pool: torch.Tensor, run: int, dim: int) -> TensorDescriptor:
    flat = pool.flatten(1)
    return TensorDescriptor(flat, flat.shape, flat.stride(), [run, dim])
