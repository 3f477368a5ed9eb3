"""Keys and values of a cache, copied together: the slots of a chunk's prefixes behind one another, out of FP8 where they are in it."""

import torch
import triton
import triton.language as tl

from .fp8 import FP8, ScaledHeads
from .launching import launch


@triton.jit
def _gather(values, scales, slots, out, HEADS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    place = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + place).to(tl.int64)
    head, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, DIM)[None, :]
    at, real = head * DIM + column, head < HEADS
    x = tl.load(values + slot * (HEADS * DIM) + at, mask=real).to(tl.float32)
    scale = tl.load(scales + slot * HEADS + head, mask=real, other=0.0)
    tl.store(out + place * (HEADS * DIM) + at, (x * scale).to(out.dtype.element_ty), mask=real)


def gathered(pool: torch.Tensor | ScaledHeads, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rows `slots` (int64) of a pool, [slots, heads, dim] in `dtype`, which is a plain pool's own."""
    if not isinstance(pool, ScaledHeads):
        bits = pool.view(torch.uint8) if pool.dtype == FP8 else pool  # torch selects no rows of e4m3
        return bits.index_select(0, slots).view(pool.dtype)
    heads, dim = pool.values.shape[1:]
    out = torch.empty(len(slots), heads, dim, dtype=dtype, device=slots.device)
    if len(slots):
        launch(
            _gather, (len(slots),), pool.values, pool.scales, slots, out,
            HEADS=heads, BLOCK=triton.next_power_of_2(heads), DIM=dim, num_warps=4,
        )  # fmt: skip
    return out
