"""Attention of many queries over long contexts on Hopper, written in Gluon (Triton's lower level).

After FlashAttention 3 (Shah et al. 2024): one warp keeps the tensor copy engine busy, two warpgroups of 64 rows each compute, and the
product of the previous step with V runs while the present step's softmax is computed. Programs are as many as
multiprocessors; each works off its list of tiles, and keys of the next tile arrive while the last one is finished.

A step is two halves of RUN keys: own rows that every query of the tile sees, then runs of the prefix, full ones first,
then own rows that not every query sees. Only steps with partial runs or such rows are masked.
"""

from functools import cache

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

from .fp8 import FP8, Quantised
from .launching import launch
from .scores import Scoring
from .triton_attention import BOUNDED_VALUES, BY_BLOCK

ROWS = 128  # of a tile: two warpgroups of 64
RUN = 64
LINE = 128  # bytes of a row that one copy brings, as the swizzled layout has them
KEYS = gl.constexpr(128)  # of a step
STAGES = {1: 4, 2: 3}  # by bytes of a query's element: as many as a multiprocessor's memory holds


@gluon.jit
def _steps(tiles, item, KV_HEADS: gl.constexpr):
    """First run, runs, first own row, halves of own rows that come first, steps without a mask, steps."""
    tile = tiles + item // KV_HEADS * 8
    begin, partial, end = gl.load(tile + 2), gl.load(tile + 3), gl.load(tile + 4)
    low, seen, own = gl.load(tile + 5), gl.load(tile + 6), gl.load(tile + 7)
    return begin, end - begin, low, seen, (seen + partial - begin) // 2, (end - begin + own + 1) // 2


@gluon.jit
def _mine(items, waves):
    """How many items this program has: the last wave may be short."""
    last = gl.load(items + (waves - 1) * gl.num_programs(0) + gl.program_id(0))
    return waves - (last < 0).to(gl.int32)


@gluon.jit
def _item(items, wave):
    return gl.load(items + wave * gl.num_programs(0) + gl.program_id(0))


@gluon.jit
def _copy_half(source, row, column, ready, halves, stage, half: gl.constexpr, DIM: gl.constexpr):
    """One head of RUN rows, in as many parts as a line of shared memory asks for."""
    COLUMNS: gl.constexpr = halves.shape[2]
    for part in gl.static_range(DIM // COLUMNS):
        place = halves.index((stage * (DIM // COLUMNS) + part) * 2 + half)
        tma.async_copy_global_to_shared(source, [row, column + part * COLUMNS], ready, place)


@gluon.jit
def _copy_keys(
    own_k, own_v, pool_k, pool_v, tiles, items, waves, run_starts, k_halves, v_halves, k_ready, v_ready, free,
    KV_HEADS: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """K and V of every step of every item."""
    STAGES: gl.constexpr = free.shape[0]
    done = 0
    for wave in range(_mine(items, waves)):
        item = _item(items, wave)
        column = item % KV_HEADS * DIM
        begin, runs, low, seen, _, steps = _steps(tiles, item, KV_HEADS)
        for step in range(steps):
            stage, phase = (done + step) % STAGES, (done + step) // STAGES & 1
            mbarrier.wait(free.index(stage), phase ^ 1)
            mbarrier.expect(k_ready.index(stage), KEYS * DIM * k_halves.dtype.primitive_bitwidth // 8)
            mbarrier.expect(v_ready.index(stage), KEYS * DIM * v_halves.dtype.primitive_bitwidth // 8)
            for half in gl.static_range(2):
                run = 2 * step + half - seen
                if (run >= 0) & (run < runs):
                    row = gl.load(run_starts + begin + run)
                    _copy_half(pool_k, row, column, k_ready.index(stage), k_halves, stage, half, DIM)
                    _copy_half(pool_v, row, column, v_ready.index(stage), v_halves, stage, half, DIM)
                else:
                    row = low + k_halves.shape[1] * (2 * step + half - runs * (run >= 0).to(gl.int32))
                    _copy_half(own_k, row, column, k_ready.index(stage), k_halves, stage, half, DIM)
                    _copy_half(own_v, row, column, v_ready.index(stage), v_halves, stage, half, DIM)
        done += steps


@gluon.jit
def _bounds(unit, run_counts, begin, runs, low, seen, lows, highs):
    """First and last key of a half that each row sees."""
    run = unit - seen
    of_prefix = ((run >= 0) & (run < runs)).to(gl.int32)
    count = gl.load(run_counts + begin + run, mask=of_prefix > 0, other=0)
    row = low + KEYS // 2 * (unit - runs * (run >= 0).to(gl.int32))
    return (lows - row) * (1 - of_prefix), (highs - row) * (1 - of_prefix) + (count - 1) * of_prefix


@gluon.jit
def _masked(scores, least, most, least_2, most_2, S: gl.constexpr):
    """`least`, `most`: bounds of the first half, `least_2`, `most_2` of the second."""
    key = gl.expand_dims(gl.arange(0, KEYS, gl.SliceLayout(0, S)), 0)
    half = KEYS // 2
    visible = key >= gl.where(key < half, gl.expand_dims(least, 1), gl.expand_dims(least_2 + half, 1))
    visible &= key <= gl.where(key < half, gl.expand_dims(most, 1), gl.expand_dims(most_2 + half, 1))
    return gl.where(visible, scores, float("-inf"))


@gluon.jit
def _weights(scores, top, factor, BOUNDED: gl.constexpr):
    """Softmax numerators of one step; returns (weights, their sums, new top, what earlier sums shrink by)."""
    if BOUNDED:
        weights = gl.exp2(scores)
        shrink = top
    else:
        highest = gl.maximum(top, gl.max(scores, 1) * factor)
        shrink = gl.exp2(top - highest)
        weights = gl.exp2(scores * factor - gl.expand_dims(highest, 1))
        top = highest
    return weights, gl.sum(weights, 1), top, shrink


@gluon.jit
def _fold(
    step, done, q_buffer, k_buffers, v_buffers, k_ready, v_ready, free, packed, total, top, out, factor,
    run_counts, begin, runs, low, seen, lows, highs,
    MASK: gl.constexpr, BOUNDED: gl.constexpr, S: gl.constexpr, O: gl.constexpr, P: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """One step into the running softmax; the product of the step before with V runs meanwhile."""
    STAGES: gl.constexpr = k_buffers.shape[0]
    stage, before = (done + step) % STAGES, (done + step - 1) % STAGES
    zeros = gl.zeros([64, KEYS], gl.float32, S)
    if MASK:
        least, most = _bounds(2 * step, run_counts, begin, runs, low, seen, lows, highs)
        least_2, most_2 = _bounds(2 * step + 1, run_counts, begin, runs, low, seen, lows, highs)
    mbarrier.wait(k_ready.index(stage), (done + step) // STAGES & 1)
    scores = warpgroup_mma(q_buffer, k_buffers.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    mbarrier.wait(v_ready.index(before), (done + step - 1) // STAGES & 1)
    out = warpgroup_mma(packed, v_buffers.index(before), out, is_async=True)
    scores = warpgroup_mma_wait(1, deps=[scores])
    if MASK:
        scores = _masked(scores, least, most, least_2, most_2, S)
    weights, sums, top, shrink = _weights(scores, top, factor, BOUNDED)
    out = warpgroup_mma_wait(0, deps=[out])
    gl.thread_barrier()
    mbarrier.arrive(free.index(before), count=1)
    if BOUNDED:
        total += sums
    else:
        total = total * shrink + sums
        out = out * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, O)), 1)
    return gl.convert_layout(weights.to(packed.dtype), P), total, top, out


@gluon.jit
def _queries(
    q, q_stride, tiles, item, PART: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr
):
    """64 rows of an item: those from 64 · PART; 0 where it has fewer."""
    EACH: gl.constexpr = 128 // q.dtype.element_ty.primitive_bitwidth
    LOAD: gl.constexpr = gl.BlockedLayout([1, EACH], [32 * EACH // DIM, DIM // EACH], [4, 1], [1, 0])
    tile = tiles + item // KV_HEADS * 8
    first, count = gl.load(tile), gl.load(tile + 1)
    row = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, LOAD))
    place = (first + row // GROUP).to(gl.int64) * q_stride + (item % KV_HEADS * GROUP + row % GROUP) * DIM
    column = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, LOAD)), 0)
    return gl.load(q + (gl.expand_dims(place, 1) + column), mask=gl.expand_dims(row // GROUP < count, 1), other=0.0)


@gluon.jit
def _store(
    out, total, first, count, head, values, value_stride, scales, scale_stride, buffer,
    PART: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr, MODE: gl.constexpr, O: gl.constexpr,  # noqa: E741
):  # fmt: skip
    """64 rows of the output, through `buffer` in shared memory: from there each warp writes whole lines."""
    row = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, O))
    real = row // GROUP < count
    out = out * gl.expand_dims(1.0 / gl.where(real, gl.convert_layout(total, gl.SliceLayout(1, O)), 1.0), 1)
    if MODE == BY_BLOCK:
        largest = gl.maximum(gl.max(gl.abs(out), 1), 1e-12)
        lane = head * GROUP + row % GROUP
        gl.store(scales + lane.to(gl.int64) * scale_stride + first + row // GROUP, largest / 448.0, mask=real)
        out = out * gl.expand_dims(448.0 / largest, 1)
    elif MODE == BOUNDED_VALUES:
        out = out * 448.0
    buffer.store(out.to(buffer.dtype))
    gl.thread_barrier()
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // DIM, DIM // 8], [4, 1], [1, 0])
    lines = buffer.load(LINES)
    gl.thread_barrier()
    row = PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, LINES))
    place = (first + row // GROUP).to(gl.int64) * value_stride + (head * GROUP + row % GROUP) * DIM
    column = gl.expand_dims(gl.arange(0, DIM, gl.SliceLayout(0, LINES)), 0)
    real = gl.expand_dims(row // GROUP < count, 1)
    gl.store(values + (gl.expand_dims(place, 1) + column), lines.to(values.dtype.element_ty), mask=real)


@gluon.jit
def _attend_half(
    q, q_stride, tiles, items, waves, lows, highs, run_counts, q_buffer, out_buffer, k_buffers, v_buffers, k_ready, v_ready, free,
    values, value_stride, scales, scale_stride, factor,
    PART: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, BOUNDED: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """64 rows of every item: those from 64 · PART."""
    S: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, KEYS, 256 // q_buffer.dtype.primitive_bitwidth]
    )
    O: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DIM, 16])  # noqa: E741
    P: gl.constexpr = gl.DotOperandLayout(0, O, 2)
    STAGES: gl.constexpr = k_buffers.shape[0]
    mine, done = _mine(items, waves), 0
    rows = _queries(q, q_stride, tiles, _item(items, 0), PART, GROUP, KV_HEADS, DIM)
    for wave in range(mine):
        item = _item(items, wave)
        tile, head = tiles + item // KV_HEADS * 8, item % KV_HEADS
        first, count = gl.load(tile), gl.load(tile + 1)
        begin, runs, low, seen, full, steps = _steps(tiles, item, KV_HEADS)
        q_buffer.store(rows)
        fence_async_shared()
        gl.thread_barrier()

        query = (PART * 64 + gl.arange(0, 64, gl.SliceLayout(1, S))) // GROUP
        lowest = gl.load(lows + first + query, mask=query < count, other=0)
        highest = gl.load(highs + first + query, mask=query < count, other=0)
        least, most = _bounds(0, run_counts, begin, runs, low, seen, lowest, highest)
        least_2, most_2 = _bounds(1, run_counts, begin, runs, low, seen, lowest, highest)
        out = gl.zeros([64, DIM], gl.float32, O)
        zeros = gl.zeros([64, KEYS], gl.float32, S)
        top = gl.full([64], -1e30, gl.float32, gl.SliceLayout(1, S))
        mbarrier.wait(k_ready.index(done % STAGES), done // STAGES & 1)
        scores = warpgroup_mma(
            q_buffer, k_buffers.index(done % STAGES).permute((1, 0)), zeros, use_acc=False, is_async=True
        )
        scores = warpgroup_mma_wait(0, deps=[scores])
        scores = _masked(scores, least, most, least_2, most_2, S)
        weights, total, top, _ = _weights(scores, top, factor, BOUNDED)
        packed = gl.convert_layout(weights.to(v_buffers.dtype), P)
        for step in range(1, full):
            packed, total, top, out = _fold(
                step, done, q_buffer, k_buffers, v_buffers, k_ready, v_ready, free, packed, total, top, out, factor,
                run_counts, begin, runs, low, seen, lowest, highest, False, BOUNDED, S, O, P,
            )  # fmt: skip
        for step in range(gl.maximum(full, 1), steps):
            packed, total, top, out = _fold(
                step, done, q_buffer, k_buffers, v_buffers, k_ready, v_ready, free, packed, total, top, out, factor,
                run_counts, begin, runs, low, seen, lowest, highest, True, BOUNDED, S, O, P,
            )  # fmt: skip
        done += steps
        last = (done - 1) % STAGES
        mbarrier.wait(v_ready.index(last), (done - 1) // STAGES & 1)
        out = warpgroup_mma(packed, v_buffers.index(last), out, is_async=True)
        following = _item(items, gl.minimum(wave + 1, mine - 1))
        rows = _queries(q, q_stride, tiles, following, PART, GROUP, KV_HEADS, DIM)
        out = warpgroup_mma_wait(0, deps=[out])
        gl.thread_barrier()
        mbarrier.arrive(free.index(last), count=1)
        _store(
            out, total, first, count, head, values, value_stride, scales, scale_stride, out_buffer,
            PART, GROUP, DIM, MODE, O,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["waves"])
def long_attention_kernel(
    q, q_stride, own_k, own_v, pool_k, pool_v, tiles, items, waves, lows, highs, run_starts, run_counts, values, value_stride, scales, scale_stride, factor,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, BOUNDED: gl.constexpr, MODE: gl.constexpr,
):  # fmt: skip
    """`items` [waves, programs]: tile · KV_HEADS + head, or −1; tiles as in `triton_plan.TilePlan`; the others as of `attention_kernel`."""
    scored: gl.constexpr = q.dtype.element_ty
    dtype: gl.constexpr = pool_v.dtype
    K_HALVES: gl.constexpr = STAGES * 2 * (DIM // pool_k.block_shape[1])
    V_HALVES: gl.constexpr = STAGES * 2 * (DIM // pool_v.block_shape[1])
    q_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], scored)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, DIM], dtype)
    k_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], scored)
    v_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([KEYS, DIM], dtype)
    # A tile's queries lie where its output goes through.
    SHARE: gl.constexpr = dtype.primitive_bitwidth // scored.primitive_bitwidth
    out_buffers = gl.allocate_shared_memory(dtype, [2, 64, DIM], out_layout)
    q_buffers = out_buffers._reinterpret(scored, [2 * SHARE, 64, DIM], q_layout)
    # In the swizzled layout one line of all rows lies together: each half is a block of its own.
    k_halves = gl.allocate_shared_memory(scored, [K_HALVES, KEYS // 2, pool_k.block_shape[1]], pool_k.layout)
    v_halves = gl.allocate_shared_memory(dtype, [V_HALVES, KEYS // 2, pool_v.block_shape[1]], pool_v.layout)
    k_buffers = k_halves._reinterpret(scored, [STAGES, KEYS, DIM], k_layout)
    v_buffers = v_halves._reinterpret(dtype, [STAGES, KEYS, DIM], v_layout)
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
            (_attend_half, (q, q_stride, tiles, items, waves, lows, highs, run_counts, q_buffers.index(0), out_buffers.index(0), k_buffers, v_buffers, k_ready, v_ready, free, values, value_stride, scales, scale_stride, factor, 0, GROUP, KV_HEADS, DIM, BOUNDED, MODE)),
            (_attend_half, (q, q_stride, tiles, items, waves, lows, highs, run_counts, q_buffers.index(SHARE), out_buffers.index(1), k_buffers, v_buffers, k_ready, v_ready, free, values, value_stride, scales, scale_stride, factor, 1, GROUP, KV_HEADS, DIM, BOUNDED, MODE)),
            (_copy_keys, (own_k, own_v, pool_k, pool_v, tiles, items, waves, run_starts, k_halves, v_halves, k_ready, v_ready, free, KV_HEADS, DIM)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def attend_long(
    q: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
    pools: tuple[torch.Tensor, torch.Tensor],
    table,
    items: torch.Tensor,
    bounds: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor | Quantised,
    mode: int,
    scoring: Scoring,
) -> None:
    """The queries of a table's tiles over their prefixes and own rows → their rows of `out`, as in `TritonAttention.attend`.

    `q` [queries, heads, dim]; keys and values: `own` [rows, kv_heads, dim], `pools` [slots, kv_heads, dim], or `own` again where nothing has
    a prefix; slots behind a partial run must hold finite values. Queries and keys are bfloat16, or both e4m3. `table`: a
    `TilePlan` on the device; `items`, `bounds` (lows and highs) as of `Plan`. `mode`: of `out`, as `attention_kernel`'s.
    """
    heads, dim = q.shape[1:]
    kv_heads, (waves, programs) = own[0].shape[1], items.shape
    values, scales = out if mode == BY_BLOCK.value else (out, out)
    launch(
        long_attention_kernel, (programs,),
        q, q.stride(0), *map(_lines, (*own, *pools)), table.tiles, items, waves, *bounds, table.run_starts, table.run_counts,
        values, values.stride(0), scales, scales.stride(1), scoring.factor,
        GROUP=heads // kv_heads, KV_HEADS=kv_heads, DIM=dim, STAGES=STAGES[q.itemsize], BOUNDED=scoring.bounded, MODE=mode, num_warps=4,
    )  # fmt: skip


def _lines(x: torch.Tensor) -> TensorDescriptor:
    """For copies of RUN rows of `x` [rows, heads, dim], a line of shared memory each."""
    rows, heads, dim = x.shape
    block = [RUN, min(dim, LINE // x.itemsize)]
    return TensorDescriptor(x, [rows, heads * dim], [x.stride(0), 1], block, _layout(x.dtype, *block))


@cache
def _layout(dtype: torch.dtype, *block: int):
    return gl.NVMMASharedLayout.get_default_for(list(block), gl.float8e4nv if dtype == FP8 else gl.bfloat16)
