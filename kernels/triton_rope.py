"""Triton kernel between the QKV product and attention: head norm (Qwen3), rotary embedding, keys and values into the cache."""

import math

import torch
import triton
import triton.language as tl

from .fp8 import ScaledHeads
from .launching import launch

HEADS_BLOCK, ROWS_BLOCK = 8, 16  # of one program; its heads are all query, all key or all value heads


@triton.jit
def _keep(x, cell, kept, pool, scales, DIM: tl.constexpr, SCALED: tl.constexpr):
    """One head of each row, [ROWS, DIM], to its cell of the pool [slots · heads, DIM]."""
    column = tl.arange(0, DIM)[None, :]
    if SCALED:
        largest = tl.maximum(tl.max(tl.abs(x.to(tl.float32)), axis=1), 1e-12)[:, None]
        tl.store(scales + cell[:, None], largest / 448.0, mask=kept)
        x = (x.to(tl.float32) * (448.0 / largest)).to(tl.float8e4nv)
    tl.store(pool + cell[:, None] * DIM + column, x, mask=kept)


@triton.jit(do_not_specialize=["rows"])
def _turn(
    qkv, row_stride, turned, turned_stride, turn, turn_rows, q_norm, k_norm, eps, slots, pool_k, k_scales, pool_v, v_scales, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
    SCALED: tl.constexpr, INDEXED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(1) * BLOCK
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    column = tl.arange(0, DIM)[None, :]
    place = qkv + row.to(tl.int64)[:, None] * row_stride + first * DIM + column
    target = turned + row.to(tl.int64)[:, None] * turned_stride + first * DIM + column
    if KEEP:
        slot = tl.load(slots + row, mask=real, other=-1)
        kept = (slot >= 0)[:, None]
        cell = slot.to(tl.int64) * KV_HEADS
    if first >= HEADS + KV_HEADS:
        if KEEP:
            for i in tl.static_range(BLOCK):
                v = tl.load(place + i * DIM, mask=kept, other=0.0)
                _keep(v, cell + first - HEADS - KV_HEADS + i, kept, pool_v, v_scales, DIM, SCALED)
    else:
        angle_row = tl.load(turn_rows + row, mask=real, other=0) if INDEXED else row
        angle = tl.load(turn + angle_row.to(tl.int64)[:, None] * DIM + column, mask=real[:, None], other=0.0)
        cos, sin = tl.split(tl.reshape(angle, (ROWS, DIM // 2, 2)))
        if NORM:
            weight = tl.load((q_norm if first < HEADS else k_norm) + column)
        for i in tl.static_range(BLOCK):
            x = tl.load(place + i * DIM, mask=real[:, None], other=0.0)
            y = x.to(tl.float32)
            if NORM:
                y = y * tl.rsqrt(tl.sum(y * y, axis=1) / DIM + eps)[:, None] * weight
            a, b = tl.split(tl.reshape(y, (ROWS, DIM // 2, 2)))
            y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (ROWS, DIM)).to(turned.dtype.element_ty)
            tl.store(target + i * DIM, y, mask=real[:, None])
            if KEEP:  # noqa: SIM102 (known when compiling, the other is not)
                if first >= HEADS:
                    _keep(y, cell + first - HEADS + i, kept, pool_k, k_scales, DIM, SCALED)


def turn_heads(
    qkv: torch.Tensor,
    heads: int,
    kv_heads: int,
    turn: torch.Tensor,
    turn_rows: torch.Tensor | None = None,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] | None = None,
    eps: float = 0.0,
    keep: tuple[torch.Tensor, torch.Tensor | ScaledHeads, torch.Tensor | ScaledHeads] | None = None,
    out: torch.Tensor | None = None,
) -> None:
    """Turn the query and key heads of `qkv` [rows, heads + 2·kv_heads, dim], after the head norm where `norms` are given.

    In place, or into `out` [rows, heads + kv_heads, dim] of any number type; so are the keys that are kept.

    Rotary pairs are adjacent (`rows.adjacent_pairs`); `turn` complex64 [·, dim/2] has the row's angle in its own row, or in
    row `turn_rows[row]` (a table by position). `norms`: float32 [dim] for query and key heads, in the same order.
    `keep` = (slots int32 [rows], pool_k, pool_v [slots, kv_heads, dim]): turned keys and the values also go to the row's
    slot, each head with a scale of its own where pools are `ScaledHeads`; −1: nowhere.
    The value heads may be absent when nothing is kept; `heads` or `kv_heads` may be 0. dim: a power of 2.
    """
    rows, dim = qkv.shape[0], qkv.shape[-1]
    if not rows:
        return
    table = torch.view_as_real(turn)
    assert table.is_contiguous() and qkv.stride(1) == dim and qkv.stride(2) == 1
    q_norm, k_norm = (table if n is None else n for n in norms) if norms else (table, table)
    slots, *pools = keep or (qkv, qkv, qkv)
    scaled = isinstance(pools[0], ScaledHeads)
    (pool_k, k_scales), (pool_v, v_scales) = pools if scaled else ((pool, pool) for pool in pools)
    count = heads + (2 if keep else 1) * kv_heads
    block = math.gcd(heads, kv_heads, HEADS_BLOCK)
    rows_block = ROWS_BLOCK * max(1, 128 // dim)
    out = qkv if out is None else out
    launch(
        _turn, (triton.cdiv(rows, rows_block), count // block),
        qkv, qkv.stride(0), out, out.stride(0), table, table if turn_rows is None else turn_rows, q_norm, k_norm, eps,
        slots, pool_k, k_scales, pool_v, v_scales, rows,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, NORM=norms is not None, KEEP=keep is not None,
        SCALED=scaled, INDEXED=turn_rows is not None, ROWS=rows_block, BLOCK=block, num_warps=4,
    )  # fmt: skip
