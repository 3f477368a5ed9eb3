"""Triton kernels between the products: RMS norm, SwiGLU, each with quantisation to FP8 in the same pass.

`kind` is "row" or "block" (see `fp8`) for a `Quantised` result, or None for the dtype of the input; the norm also gives
`Bounded` rows. Rows are contiguous.
Sums and products run in float32.
"""

import torch
import triton
import triton.language as tl

from .fp8 import BLOCK, BOUND, FP8, Bounded, Quantised
from .launching import launch

ROW, BY_BLOCK, PLAIN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
MODES = {"row": 0, "block": 1, None: 2}
NORM_ROWS = 8  # of one program
PIECE = 16  # blocks of 128 columns that one program takes where a row may be split


@triton.jit
def store_rows(
    x, at, real, values, scales, row, scale_stride, first_block, COLUMNS, BLOCKS: tl.constexpr, MODE: tl.constexpr
):
    """Write `x` float32 [BLOCKS, 128], one row or a piece of it, plain or quantised."""
    target = values + row.to(tl.int64) * COLUMNS + at
    if MODE == PLAIN:
        tl.store(target, x.to(values.dtype.element_ty), mask=real)
    elif MODE == ROW:
        largest = tl.maximum(tl.max(tl.abs(x)), 1e-12)
        tl.store(scales + row, largest / 448.0)
        tl.store(target, (x * (448.0 / largest)).to(tl.float8e4nv), mask=real)
    else:
        largest = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-12)
        block = first_block + tl.arange(0, BLOCKS)
        tl.store(scales + block.to(tl.int64) * scale_stride + row, largest / 448.0, mask=block * 128 < COLUMNS)
        tl.store(target, (x * (448.0 / largest)[:, None]).to(tl.float8e4nv), mask=real)


@triton.jit(do_not_specialize=["count"])
def _norm(
    rows, weight, values, scales, bounds, scale_stride, eps, count,
    COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr, BOUND: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows, one after the other: the weight is loaded once."""
    at = tl.arange(0, BLOCKS)[:, None] * 128 + tl.arange(0, 128)[None, :]
    real = at < COLUMNS
    w = tl.load(weight + at, mask=real, other=0.0)
    for i in range(ROWS):
        row = tl.minimum(tl.program_id(0) * ROWS + i, count - 1)  # the last program may take the last row again
        x = tl.load(rows + row.to(tl.int64) * COLUMNS + at, mask=real, other=0.0).to(tl.float32)
        x = x * tl.rsqrt(tl.sum(x * x) / COLUMNS + eps) * w
        if BOUND is not None:
            tl.store(bounds + row, tl.maximum(tl.sum(x * x) * BOUND, 1e-12))
        store_rows(x, at, real, values, scales, row, scale_stride, 0, COLUMNS, BLOCKS, MODE)


@triton.jit
def _swiglu(gate_up, values, scales, scale_stride, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr):
    row, first_block = tl.program_id(0), tl.program_id(1) * BLOCKS
    at = (first_block + tl.arange(0, BLOCKS))[:, None] * 128 + tl.arange(0, 128)[None, :]
    real = at < COLUMNS
    place = gate_up + row.to(tl.int64) * (2 * COLUMNS) + at
    gate = tl.load(place, mask=real, other=0.0).to(tl.float32)
    up = tl.load(place + COLUMNS, mask=real, other=0.0).to(tl.float32)
    x = gate * up / (1.0 + tl.exp2(gate * -1.4426950408889634))
    store_rows(x, at, real, values, scales, row, scale_stride, first_block, COLUMNS, BLOCKS, MODE)


@triton.jit
def _quantise(x, values, scales, scale_stride, COLUMNS: tl.constexpr, BLOCKS: tl.constexpr, MODE: tl.constexpr):
    row, first_block = tl.program_id(0), tl.program_id(1) * BLOCKS
    at = (first_block + tl.arange(0, BLOCKS))[:, None] * 128 + tl.arange(0, 128)[None, :]
    real = at < COLUMNS
    piece = tl.load(x + row.to(tl.int64) * COLUMNS + at, mask=real, other=0.0).to(tl.float32)
    store_rows(piece, at, real, values, scales, row, scale_stride, first_block, COLUMNS, BLOCKS, MODE)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, kind: str | None):
    """`rows.rms_norm` of `x` [rows, columns]; `weight` float32. `kind` may be "bounded" too."""
    rows, columns = x.shape
    bounded = kind == "bounded"
    kind = "row" if bounded else kind
    result, values, scales = _result(rows, columns, kind, x)
    bounds = torch.empty_like(scales) if bounded else scales
    if rows:
        blocks = triton.next_power_of_2(triton.cdiv(columns, BLOCK))
        launch(
            _norm, (triton.cdiv(rows, NORM_ROWS),),
            x, weight, values, scales, bounds, scales.stride(-1), eps, rows,
            COLUMNS=columns, BLOCKS=blocks, MODE=MODES[kind], BOUND=BOUND if bounded else None,
            ROWS=NORM_ROWS, num_warps=max(1, blocks // 16),
        )  # fmt: skip
    return Bounded(values, scales, bounds) if bounded else result


def swiglu(gate_up: torch.Tensor, kind: str | None):
    """`rows.swiglu` of `gate_up` [rows, 2·n] → [rows, n]."""
    rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
    result, values, scales = _result(rows, columns, kind, gate_up)
    _launch(_swiglu, gate_up, rows, columns, kind, values, scales)
    return result


def quantise(x: torch.Tensor, kind: str) -> Quantised:
    """`fp8.quantise` of `x` [rows, columns]."""
    result, values, scales = _result(*x.shape, kind, x)
    _launch(_quantise, x, *x.shape, kind, values, scales)
    return result


def empty_quantised(rows: int, columns: int, kind: str, device) -> Quantised:
    """Unwritten memory of the layout that the products take."""
    values = torch.empty(rows, columns, dtype=FP8, device=device)
    if kind == "row":
        return Quantised(values, torch.empty(rows, 1, dtype=torch.float32, device=device))
    return Quantised(values, torch.empty(columns // BLOCK, rows, dtype=torch.float32, device=device).t())


def _result(rows: int, columns: int, kind: str | None, like: torch.Tensor):
    if kind is None:
        plain = torch.empty(rows, columns, dtype=like.dtype, device=like.device)
        return plain, plain, plain
    quantised = empty_quantised(rows, columns, kind, like.device)
    return quantised, *quantised


def _launch(kernel, x, rows, columns, kind, values, scales) -> None:
    blocks = triton.next_power_of_2(triton.cdiv(columns, BLOCK))
    if kind != "row":
        blocks = min(blocks, PIECE)
    if rows:
        launch(
            kernel,
            (rows, triton.cdiv(columns, blocks * BLOCK)),
            x,
            values,
            scales,
            scales.stride(-1),
            COLUMNS=columns,
            BLOCKS=blocks,
            MODE=MODES[kind],
            num_warps=max(1, blocks // 16),
        )
