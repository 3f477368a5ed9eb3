"""Attention of many queries over one long shared prefix on Hopper, written in Gluon (Triton's lower level).

After FlashAttention 3 (Shah et al. 2024): one warp keeps the tensor copy engine busy, two warpgroups of 64 rows each compute, and the
product of the previous step with V runs while the present step's softmax is computed. It takes the full runs of a tile's
prefix and leaves a partial result (output and log-sum-exp) that `attention_kernel` continues from.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROWS = 128  # of a tile: two warpgroups of 64
RUN = 128


@gluon.jit
def _copy_runs(
    pool_k,
    pool_v,
    run_starts,
    begin,
    steps,
    column,
    k_buffers,
    v_buffers,
    k_ready,
    v_ready,
    free,
    BYTES: gl.constexpr,
    STAGES: gl.constexpr,
):
    for step in range(steps):
        stage, phase = step % STAGES, step // STAGES & 1
        slot = gl.load(run_starts + begin + step)
        mbarrier.wait(free.index(stage), phase ^ 1)
        mbarrier.expect(k_ready.index(stage), BYTES)
        tma.async_copy_global_to_shared(pool_k, [slot, column], k_ready.index(stage), k_buffers.index(stage))
        mbarrier.expect(v_ready.index(stage), BYTES)
        tma.async_copy_global_to_shared(pool_v, [slot, column], v_ready.index(stage), v_buffers.index(stage))


@gluon.jit
def _weights(scores, top, factor, BOUNDED: gl.constexpr):
    """Softmax numerators of one step; returns (weights, their sums, new top, what earlier sums shrink by)."""
    if BOUNDED:
        weights = gl.exp2(scores * factor)
        shrink = top
    else:
        highest = gl.maximum(top, gl.max(scores, 1) * factor)
        shrink = gl.exp2(top - highest)
        weights = gl.exp2(scores * factor - gl.expand_dims(highest, 1))
        top = highest
    return weights, gl.sum(weights, 1), top, shrink


@gluon.jit
def _attend_half(
    q, q_stride, first, count, head, steps, q_buffer, k_buffers, v_buffers, k_ready, v_ready, free, values, lse, factor,
    PART: gl.constexpr, GROUP: gl.constexpr, HEADS: gl.constexpr, DIM: gl.constexpr, KEYS: gl.constexpr, BOUNDED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """64 rows of the tile: those from 64 · PART."""
    LOAD: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // DIM, DIM // 8], [4, 1], [1, 0])
    S: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 16])
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16])  # noqa: E741
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    flat = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, LOAD))
    lane = (head * GROUP + flat % GROUP) * DIM
    place = (first + flat // GROUP).to(gl.int64) * q_stride + lane
    column = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, LOAD)), 0)
    real = gl.expand_dims(flat // GROUP < count, 1)
    q_buffer.store(gl.load(q + (gl.expand_dims(place, 1) + column), mask=real, other=0.0))
    fence_async_shared()
    gl.thread_barrier()

    zeros = gl.zeros([64, KEYS], gl.float32, S)
    out = gl.zeros([64, DIM], gl.float32, O)
    top = gl.full([64], -1e30, gl.float32, gl.SliceLayout(1, S))
    mbarrier.wait(k_ready.index(0), 0)
    scores = warpgroup_mma(q_buffer, k_buffers.index(0).permute((1, 0)), zeros, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, deps=[scores])
    weights, total, top, shrink = _weights(scores, top, factor, BOUNDED)
    packed = gl.convert_layout(weights.to(q.dtype.element_ty), P)
    for step in range(1, steps):
        stage, before = step % STAGES, (step - 1) % STAGES
        mbarrier.wait(k_ready.index(stage), step // STAGES & 1)
        scores = warpgroup_mma(q_buffer, k_buffers.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(before), (step - 1) // STAGES & 1)
        out = warpgroup_mma(packed, v_buffers.index(before), out, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        weights, sums, top, shrink = _weights(scores, top, factor, BOUNDED)
        out = warpgroup_mma_wait(0, deps=[out])
        gl.thread_barrier()
        mbarrier.arrive(free.index(before), count=1)
        if BOUNDED:
            total += sums
        else:
            total = total * shrink + sums
            out = out * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, O)), 1)
        packed = gl.convert_layout(weights.to(q.dtype.element_ty), P)
    last = (steps - 1) % STAGES
    mbarrier.wait(v_ready.index(last), (steps - 1) // STAGES & 1)
    out = warpgroup_mma(packed, v_buffers.index(last), out, is_async=True)
    out = warpgroup_mma_wait(0, deps=[out])

    out = out / gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, O)), 1)
    exponent = gl.log2(total) if BOUNDED else gl.log2(total) + top
    row = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, S))
    gl.store(lse + (first + row // GROUP) * HEADS + head * GROUP + row % GROUP, exponent, mask=row // GROUP < count)
    flat = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, O))
    column = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, O)), 0)
    place = (first + flat // GROUP).to(gl.int64) * (HEADS * DIM) + (head * GROUP + flat % GROUP) * DIM
    real = gl.expand_dims(flat // GROUP < count, 1)
    gl.store(values + (gl.expand_dims(place, 1) + column), out.to(values.dtype.element_ty), mask=real)


@gluon.jit
def _prefix_kernel(
    q, q_stride, pool_k, pool_v, tiles, run_starts, values, lse, factor,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, KEYS: gl.constexpr, BOUNDED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    head = gl.program_id(0) % KV_HEADS
    tile = tiles + (gl.program_id(0) // KV_HEADS) * 8
    first, count, begin = gl.load(tile), gl.load(tile + 1), gl.load(tile + 2)
    steps = gl.load(tile + 3) - begin
    dtype: gl.constexpr = q.dtype.element_ty
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], dtype)
    q_buffers = gl.allocate_shared_memory(dtype, [2, 64, DIM], q_layout)
    k_buffers = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], pool_k.layout)
    v_buffers = gl.allocate_shared_memory(dtype, [STAGES, KEYS, DIM], pool_v.layout)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (_attend_half, (q, q_stride, first, count, head, steps, q_buffers.index(0), k_buffers, v_buffers, k_ready, v_ready, free, values, lse, factor, 0, GROUP, GROUP * KV_HEADS, DIM, KEYS, BOUNDED, STAGES)),
            (_attend_half, (q, q_stride, first, count, head, steps, q_buffers.index(1), k_buffers, v_buffers, k_ready, v_ready, free, values, lse, factor, 1, GROUP, GROUP * KV_HEADS, DIM, KEYS, BOUNDED, STAGES)),
            (_copy_runs, (pool_k, pool_v, run_starts, begin, steps, head * DIM, k_buffers, v_buffers, k_ready, v_ready, free, KEYS * DIM * 2, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def attend_prefix(
    q, pool_k, pool_v, tiles, run_starts, factor: float, bounded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries `q` [rows, heads, dim] of `tiles` over the full runs of their prefixes, at least one each.

    Returns (output like `q`, contiguous; log-sum-exp in base 2, float32 [rows, heads]), written for those tiles' queries.
    `factor`: softmax scale · log2(e).
    """
    rows, heads, dim = q.shape
    kv_heads = pool_k.shape[1]
    values = torch.empty(rows, heads, dim, dtype=q.dtype, device=q.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=q.device)
    layout = gl.NVMMASharedLayout.get_default_for([RUN, dim], gl.bfloat16)
    pools = [TensorDescriptor.from_tensor(pool.flatten(1), [RUN, dim], layout) for pool in (pool_k, pool_v)]
    _prefix_kernel[(len(tiles) * kv_heads,)](
        q, q.stride(0), *pools, tiles, run_starts, values, lse, factor,
        GROUP=heads // kv_heads, KV_HEADS=kv_heads, DIM=dim, KEYS=RUN, BOUNDED=bounded, STAGES=3, num_warps=4,
    )  # fmt: skip
    return values, lse
