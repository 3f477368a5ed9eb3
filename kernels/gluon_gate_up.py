"""Gate-up product on Hopper whose epilogue is SwiGLU and quantisation, written in Gluon.

One warp keeps the tensor copy engine busy; two warpgroups multiply 64 rows each of a tile of 128 rows × 128 gate and 128 up
columns. Programs are as many as multiprocessors and work off tiles in turn, `GROUP` rows of tiles at a time, so that
what they share stays in L2. While one warpgroup is in its epilogue, the other's products and the copies for the next tile
run on.

The scales of the results are known before them: |silu(gate) · up| ≤ |gate · up|, which is at most ‖x‖² times a number that only
the weights tell. `mlp.fold` divides the up rows by that, and the kernel before this hands over ‖x‖².
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

from .fp8 import FP8
from .launching import launch, programs

ROWS, COLUMNS, STEP = 64, 128, 128  # of a warpgroup; of gate and of up in a tile; of the inner dimension
HALF, BLOCK, DEPTH = gl.constexpr(ROWS), gl.constexpr(COLUMNS), gl.constexpr(STEP)
STAGES = gl.constexpr(4)
GROUP = 64


@gluon.jit
def _place(tile, row_tiles, column_tiles, GROUP: gl.constexpr):
    """Row and column of tiles."""
    of_group = GROUP * column_tiles
    first = tile // of_group * GROUP
    height = gl.minimum(row_tiles - first, GROUP)
    return first + tile % of_group % height, tile % of_group // height


@gluon.jit
def _copy(x, weight, a, b, ready, free, row_tiles, column_tiles, steps, GROUP: gl.constexpr):
    """Both operands of every step of every tile."""
    done = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, GROUP)
        for step in range(steps):
            stage, phase = done % STAGES, done // STAGES & 1
            mbarrier.wait(free.index(stage), phase ^ 1)
            mbarrier.expect(ready.index(stage), 2 * (HALF + BLOCK) * DEPTH)
            at = step * DEPTH
            for part in gl.static_range(2):
                of_x, of_weight = (2 * row + part) * HALF, (column + part * column_tiles) * BLOCK
                tma.async_copy_global_to_shared(x, [of_x, at], ready.index(stage), a.index(2 * stage + part))
                tma.async_copy_global_to_shared(weight, [of_weight, at], ready.index(stage), b.index(2 * stage + part))
            done += 1


@gluon.jit
def _multiply(a, b, ready, free, done, steps, PART: gl.constexpr, BOTH: gl.constexpr):
    """64 rows of a tile's product, float32 [64, 256]. The last step may still run, and its stage is not free yet."""
    acc = gl.zeros([HALF, 2 * BLOCK], gl.float32, BOTH)
    for step in range(steps):
        stage = done % STAGES
        mbarrier.wait(ready.index(stage), done // STAGES & 1)
        rows, columns = a.index(2 * stage + PART), b.index(stage).permute((1, 0))
        running = warpgroup_mma(rows, columns, acc, use_acc=step > 0, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[running])
        mbarrier.arrive(free.index((done + STAGES - 1) % STAGES), count=1, pred=step > 0)
        done += 1
    return acc, done


@gluon.jit
def _half(
    a, b, ready, free, staged, out, x_scales, bounds, w_scales, rows, row_tiles, column_tiles, steps,
    PART: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """64 rows of every tile: those from 64 · PART."""
    BOTH: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 256, 32])
    ONE: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 32])
    done = 0
    for tile in range(gl.program_id(0), row_tiles * column_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, GROUP)
        acc, done = _multiply(a, b, ready, free, done, steps, PART, BOTH)
        first = (2 * row + PART) * HALF
        at = first + gl.arange(0, HALF, gl.SliceLayout(1, ONE))
        scale = gl.load(x_scales + at, mask=at < rows, other=0.0)
        to_bound = gl.expand_dims(scale / gl.load(bounds + at, mask=at < rows, other=1.0), 1)
        to = column * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, ONE))
        of_gate = gl.expand_dims(gl.load(w_scales + to), 0)
        of_up = gl.expand_dims(gl.load(w_scales + column_tiles * BLOCK + to), 0)

        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(free.index((done - 1) % STAGES), count=1)
        gate, up = gl.split(acc.reshape([HALF, 2, BLOCK]).permute((0, 2, 1)))
        gate = gl.convert_layout(gate, ONE, assert_trivial=True) * gl.expand_dims(scale, 1) * of_gate
        up = gl.convert_layout(up, ONE, assert_trivial=True) * to_bound * of_up
        mixed = gate * up / (1.0 + gl.exp2(gate * -1.4426950408889634))
        tma.store_wait(0)
        gl.thread_barrier()
        staged.store(mixed.to(staged.dtype))
        fence_async_shared()
        gl.thread_barrier()
        # The copy engine leaves out rows behind the end.
        tma.async_copy_shared_to_global(out, [first, column * BLOCK], staged)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows"])
def gate_up_kernel(x, weight, out, x_scales, bounds, w_scales, rows, columns, depth, GROUP: gl.constexpr):
    dtype: gl.constexpr = gl.float8e4nv
    pair: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * BLOCK, DEPTH], dtype)
    row_tiles, column_tiles, steps = (rows + 2 * HALF - 1) // (2 * HALF), columns // BLOCK, depth // DEPTH
    a = gl.allocate_shared_memory(dtype, [2 * STAGES, HALF, DEPTH], x.layout)
    blocks = gl.allocate_shared_memory(dtype, [2 * STAGES, BLOCK, DEPTH], weight.layout)
    b = blocks._reinterpret(dtype, [STAGES, 2 * BLOCK, DEPTH], pair)
    staged = gl.allocate_shared_memory(dtype, [2, HALF, BLOCK], out.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.thread_barrier()
    gl.warp_specialize(
        [
            (_half, (a, b, ready, free, staged.index(0), out, x_scales, bounds, w_scales, rows, row_tiles, column_tiles, steps, 0, GROUP)),
            (_half, (a, b, ready, free, staged.index(1), out, x_scales, bounds, w_scales, rows, row_tiles, column_tiles, steps, 1, GROUP)),
            (_copy, (x, weight, a, blocks, ready, free, row_tiles, column_tiles, steps, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def pieces(matrix: torch.Tensor, rows: int) -> TensorDescriptor:
    """For the copy engine: pieces [rows, 128] of an e4m3 matrix."""
    return TensorDescriptor.from_tensor(matrix, [rows, STEP], _layout(rows))


@cache
def _layout(rows: int):
    return gl.NVMMASharedLayout.get_default_for([rows, STEP], gl.float8e4nv)


def gate_up_swiglu(
    x: torch.Tensor, x_scales: torch.Tensor, bounds: torch.Tensor, weight: TensorDescriptor, w_scales: torch.Tensor
) -> torch.Tensor:
    """`rows.swiglu` of x Wᵀ over its row's bound, e4m3 [rows, n].

    `x` e4m3 [rows, depth], `weight` `pieces` (of 128 rows) of e4m3 [2 · n, depth] = (gate | up); `x_scales`, `bounds` float32
    [rows, 1] and `w_scales` float32 [2 · n, 1] belong to them. n and depth: multiples of 128. What exceeds 448 becomes 448.
    """
    rows, depth = x.shape
    columns = weight.shape[0] // 2
    out = torch.empty(rows, columns, dtype=FP8, device=x.device)
    if rows:
        launch(
            gate_up_kernel, (programs(x.device),),
            pieces(x, ROWS), weight, pieces(out, ROWS), x_scales, bounds, w_scales, rows, columns, depth,
            GROUP=GROUP, num_warps=4,
        )  # fmt: skip
    return out
