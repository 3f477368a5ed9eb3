"""Triton kernel for attention of a ragged chunk: one pass over the shared prefix in the cache and the own new tokens.

A program takes a tile of neighbouring queries for one key/value head; the heads that share it (GQA) are further rows of
the tile. Queries of many segments behind one prefix fill a tile together, so the prefix is read once for all of them.
Both parts run through one online softmax (FlashAttention; Dao 2023): there is nothing to merge afterwards.
"""

import triton
import triton.language as tl

PLAIN, BY_BLOCK, BOUNDED_VALUES = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def _fold(q, k, v, seen, total, top, out, factor, MASK: tl.constexpr, BOUNDED: tl.constexpr):
    """One block of keys into the running softmax. Scores · `factor` are powers of 2; `top` is the highest so far.

    BOUNDED: `factor` is 1, and there is no `top` to look for.
    """
    scores = tl.dot(q, tl.trans(k))
    if MASK:
        scores = tl.where(seen, scores, float("-inf"))
    if BOUNDED:
        weights = tl.exp2(scores)
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
def _prefix(
    pool,
    scales,
    slot,
    count,
    head,
    dtype,
    DIM: tl.constexpr,
    RUN: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Keys or values of `count` slots, [RUN, DIM]; anything behind them."""
    x = pool.load([slot, head * DIM])
    if SCALED:
        place = tl.arange(0, RUN)
        scale = tl.load(scales + (slot + place).to(tl.int64) * KV_HEADS + head, mask=place < count, other=0.0)
        x = (x.to(tl.float32) * scale[:, None]).to(dtype)
    return x


@triton.jit
def attention_kernel(
    q, q_stride, own_k, own_v, pool_k, k_scales, pool_v, v_scales, tiles, lows, highs, run_starts, run_counts, values, value_stride, scales, scale_stride, factor,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    RUN: tl.constexpr, PREFIX: tl.constexpr, SCALED: tl.constexpr, BOUNDED: tl.constexpr, MODE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Tiles as in `triton_plan.TilePlan`. Query i sees own rows `lows[i]` … `highs[i]`.

    Run r is `run_counts[r]` ≤ RUN neighbouring slots from `run_starts[r]`; all but the partial ones are RUN long. The own
    rows and the pools [·, KV_HEADS·DIM] are tensor descriptors. Queries and keys have one number type, e4m3 or that of the
    values. SCALED pools are e4m3 with a scale for each slot and head, where queries and own keys are not.
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
            k = _prefix(pool_k, k_scales, slot, RUN, head, own_v.dtype, DIM, RUN, KV_HEADS, SCALED)
            v = _prefix(pool_v, v_scales, slot, RUN, head, own_v.dtype, DIM, RUN, KV_HEADS, SCALED)
            total, top, out = _fold(packed, k, v, none, total, top, out, factor, False, BOUNDED)
        for run in tl.range(partial, end, num_stages=1):
            slot = tl.load(run_starts + run)
            count = tl.load(run_counts + run)
            seen = tl.arange(0, RUN) < count
            k = _prefix(pool_k, k_scales, slot, count, head, own_v.dtype, DIM, RUN, KV_HEADS, SCALED)
            # Slots behind the run may never have been written, and 0 · NaN is NaN.
            v = _prefix(pool_v, v_scales, slot, count, head, own_v.dtype, DIM, RUN, KV_HEADS, SCALED)
            v = tl.where(seen[:, None], v, 0.0)
            total, top, out = _fold(packed, k, v, seen[None, :], total, top, out, factor, True, BOUNDED)

    low = tl.load(lows + query, mask=real, other=-1)
    high = tl.load(highs + query, mask=real, other=-1)
    key, last = tl.min(tl.where(real, low, 2147483647)), tl.max(high)
    shared = tl.where(tl.max(low) == key, tl.min(tl.where(real, high, 2147483647)) + 1, key)  # seen by all up to here
    unmasked = key + (shared - key) // KEYS * KEYS
    for at in tl.range(key, unmasked, KEYS, num_stages=STAGES):
        k = own_k.load([at, head * DIM])
        v = own_v.load([at, head * DIM])
        total, top, out = _fold(packed, k, v, none, total, top, out, factor, False, BOUNDED)
    for at in tl.range(unmasked, last + 1, KEYS, num_stages=STAGES):
        row = at + tl.arange(0, KEYS)
        seen = (row[None, :] >= low[:, None]) & (row[None, :] <= high[:, None])
        k = own_k.load([at, head * DIM])
        v = own_v.load([at, head * DIM])
        total, top, out = _fold(packed, k, v, seen, total, top, out, factor, True, BOUNDED)

    out = out / tl.where(real, total, 1.0)[:, None]
    target = values + (query.to(tl.int64) * value_stride + lane)[:, None] + column[None, :]
    if MODE == PLAIN:
        tl.store(target, out.to(values.dtype.element_ty), mask=real[:, None])
    elif MODE == BOUNDED_VALUES:
        tl.store(target, (out * 448.0).to(tl.float8e4nv), mask=real[:, None])
    else:
        largest = tl.maximum(tl.max(tl.abs(out), 1), 1e-12)
        tl.store(scales + (head * GROUP + flat % GROUP).to(tl.int64) * scale_stride + query, largest / 448.0, mask=real)
        tl.store(target, (out * (448.0 / largest)[:, None]).to(tl.float8e4nv), mask=real[:, None])
