"""Triton kernel between the QKV product and attention: head norm (Qwen3), rotary embedding, keys and values into the cache."""

import torch
import triton
import triton.language as tl

TILE = 4096  # elements of one program


@triton.jit(do_not_specialize=["rows"])
def _turn(
    qkv, row_stride, turn, turn_rows, q_norm, k_norm, eps, slots, pool_k, pool_v, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, NORM: tl.constexpr, KEEP: tl.constexpr,
    INDEXED: tl.constexpr, ROWS_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr,
):  # fmt: skip
    flat = tl.arange(0, ROWS_BLOCK * HEADS_BLOCK)
    row = tl.program_id(0) * ROWS_BLOCK + flat // HEADS_BLOCK
    head = tl.program_id(1) * HEADS_BLOCK + flat % HEADS_BLOCK
    turned = head < HEADS + KV_HEADS
    real = (row < rows) & (head < HEADS + (2 if KEEP else 1) * KV_HEADS)
    column = tl.arange(0, DIM)[None, :]
    place = qkv + row.to(tl.int64)[:, None] * row_stride + head[:, None] * DIM + column
    x = tl.load(place, mask=real[:, None], other=0.0)
    y = x.to(tl.float32)
    if NORM:
        weight = tl.where((head < HEADS)[:, None], tl.load(q_norm + column), tl.load(k_norm + column))
        y = y * tl.rsqrt(tl.sum(y * y, axis=1) / DIM + eps)[:, None] * weight
    angle_row = tl.load(turn_rows + row, mask=real, other=0) if INDEXED else row
    angle = tl.load(turn + angle_row.to(tl.int64)[:, None] * DIM + column, mask=(real & turned)[:, None], other=0.0)
    cos, sin = tl.split(tl.reshape(angle, (ROWS_BLOCK * HEADS_BLOCK, DIM // 2, 2)))
    a, b = tl.split(tl.reshape(y, (ROWS_BLOCK * HEADS_BLOCK, DIM // 2, 2)))
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (ROWS_BLOCK * HEADS_BLOCK, DIM)).to(x.dtype)
    tl.store(place, y, mask=(real & turned)[:, None])
    if KEEP:
        slot = tl.load(slots + row, mask=real, other=-1)
        kept = real & (slot >= 0)
        cell = slot.to(tl.int64)[:, None] * (KV_HEADS * DIM) + column
        tl.store(pool_k + cell + (head - HEADS)[:, None] * DIM, y, mask=(kept & turned & (head >= HEADS))[:, None])
        tl.store(
            pool_v + cell + (head - HEADS - KV_HEADS)[:, None] * DIM,
            x,
            mask=(kept & (head >= HEADS + KV_HEADS))[:, None],
        )


def turn_heads(
    qkv: torch.Tensor,
    heads: int,
    kv_heads: int,
    turn: torch.Tensor,
    turn_rows: torch.Tensor | None = None,
    norms: tuple[torch.Tensor | None, torch.Tensor | None] | None = None,
    eps: float = 0.0,
    keep: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Turn the query and key heads of `qkv` [rows, heads + 2·kv_heads, dim] in place, after the head norm where `norms` are given.

    Rotary pairs are adjacent (`rows.adjacent_pairs`); `turn` complex64 [·, dim/2] has the row's angle in its own row, or in
    row `turn_rows[row]` (a table by position). `norms`: float32 [dim] for query and key heads, in the same order.
    `keep` = (slots int32 [rows], pool_k, pool_v [slots, kv_heads, dim]): turned keys and the values also go to the row's
    slot; −1: nowhere. The value heads may be absent when nothing is kept; `heads` or `kv_heads` may be 0. dim: a power of 2.
    """
    rows, dim = qkv.shape[0], qkv.shape[-1]
    if not rows:
        return
    table = torch.view_as_real(turn)
    assert table.is_contiguous() and qkv.stride(1) == dim and qkv.stride(2) == 1
    q_norm, k_norm = (table if n is None else n for n in norms) if norms else (table, table)
    slots, pool_k, pool_v = keep or (qkv, qkv, qkv)
    count = heads + (2 if keep else 1) * kv_heads
    heads_block = min(8, triton.next_power_of_2(count))
    rows_block = max(1, TILE // (heads_block * dim))
    _turn[(triton.cdiv(rows, rows_block), triton.cdiv(count, heads_block))](
        qkv, qkv.stride(0), table, table if turn_rows is None else turn_rows, q_norm, k_norm, eps, slots, pool_k, pool_v, rows,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, NORM=norms is not None, KEEP=keep is not None,
        INDEXED=turn_rows is not None, ROWS_BLOCK=rows_block, HEADS_BLOCK=heads_block, num_warps=4,
    )  # fmt: skip
