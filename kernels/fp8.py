"""FP8 (e4m3) with float32 scales: the formats, in plain torch. value ≈ fp8 · scale, scale = largest magnitude / 448.

Activations have one scale a row ("row") or one for each 128 columns of a row ("block"). Weights have one a row, that is
an output channel, or one for each 128 × 128 block, as published checkpoints do (`weight`, `weight_scale_inv`).
"""

from typing import NamedTuple

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
BLOCK = 128
KINDS = ("row", "block")
LEAST_SCALE = 1e-12 / FP8_MAX  # of rows and blocks that hold only zeros


class Quantised(NamedTuple):
    """`values` e4m3 [rows, columns]; `scales` float32 [rows, 1] or, by block, [rows, columns/128] with strides (1, rows)."""

    values: torch.Tensor
    scales: torch.Tensor


class ScaledHeads(NamedTuple):
    """Keys or values in a cache: `values` e4m3 [slots, heads, dim], `scales` float32 [slots, heads], one for each head of a slot."""

    values: torch.Tensor
    scales: torch.Tensor


class Bounded(NamedTuple):
    """Rows as `Quantised` by row, with the scale that products of two of a row's projections take.

    `bounds` float32 [rows, 1]: |(x·u)(x·w)| ≤ 448 · bound for unit vectors u and w, by Cauchy and Schwarz.
    """

    values: torch.Tensor
    scales: torch.Tensor
    bounds: torch.Tensor


ROUNDING = 1 + 2**-4  # the most by which rounding to e4m3 lengthens a row
BOUND = ROUNDING**2 / FP8_MAX  # of a row's length squared
LEAST_BOUND = 1e-12


def quantise(x: torch.Tensor, kind: str) -> Quantised:
    """Activations `x` [rows, columns]; by block the columns are a multiple of 128."""
    if kind == "row":
        scales = _scale(x.float().abs().amax(1, keepdim=True))
        return Quantised(_to_fp8(x.float() / scales), scales)
    blocks = x.float().unflatten(1, (-1, BLOCK))
    scales = _scale(blocks.abs().amax(2))
    return Quantised(_to_fp8((blocks / scales[..., None]).flatten(1)), scales.t().contiguous().t())


def bound(x: torch.Tensor) -> Bounded:
    """Activations `x` [rows, columns]."""
    squares = x.float().square().sum(1, keepdim=True)
    return Bounded(*quantise(x, "row"), (squares * BOUND).clamp_min_(LEAST_BOUND))


def dequantise(x: Quantised) -> torch.Tensor:
    """Activations back in float32."""
    repeat = x.values.shape[1] // x.scales.shape[1]
    return x.values.float() * x.scales.repeat_interleave(repeat, 1)


def quantise_weight(weight: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] → e4m3 and scales, [out, 1] or [⌈out/128⌉, ⌈in/128⌉]."""
    if kind == "row":
        return quantise(weight, "row")
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    scales = _scale(blocks.abs().amax((1, 3)))
    return _to_fp8(weight.float() / _spread(scales, rows, columns)), scales


def dequantise_weight(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Either kind of weight back in float32 [out, in]."""
    return weight.float() * (
        scales if scales.shape[1] == 1 and _by_row(weight, scales) else _spread(scales, *weight.shape)
    )


def requantise_weight(weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A block-scaled weight with one scale an output channel instead: e4m3 [out, in], float32 [out, 1]."""
    return quantise_weight(dequantise_weight(weight, scales), "row")


def _by_row(weight: torch.Tensor, scales: torch.Tensor) -> bool:
    return scales.shape[0] == weight.shape[0]


def _spread(scales: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]


def _scale(largest: torch.Tensor) -> torch.Tensor:
    return (largest / FP8_MAX).clamp_min_(LEAST_SCALE)


def _to_fp8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_(-FP8_MAX, FP8_MAX).to(FP8)
