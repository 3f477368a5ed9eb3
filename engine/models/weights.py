"""Matrices of a checkpoint, plain or in FP8 with block scales, and what fusing layers does to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quail_spark.kernels.fp8 import BLOCK, dequantise_weight
from quail_spark.kernels.linear import Linear
from quail_spark.kernels.mlp import BoundedMlp, Mlp
from quail_spark.kernels.rows import adjacent_pairs
from quail_spark.kernels.scaled_linear import ScaledLinear, can_scale


@dataclass(frozen=True)
class BlockScaled:
    """`values` e4m3 [out, in]; `scales` float32 [⌈out/128⌉, ⌈in/128⌉]: value · scale is the weight."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Matrix = torch.Tensor | BlockScaled


def plain(matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """The matrix without scales, [out, in] of `dtype`."""
    if isinstance(matrix, BlockScaled):
        return dequantise_weight(matrix.values, matrix.scales).to(dtype)
    return matrix.to(dtype)


def paired(matrix: Matrix, head_dim: int) -> Matrix:
    """`rows.adjacent_pairs` of the output channels. They move within their head, so within their scales' block."""
    if not isinstance(matrix, BlockScaled):
        return adjacent_pairs(matrix, head_dim)
    if BLOCK % head_dim:
        return adjacent_pairs(plain(matrix, torch.bfloat16), head_dim)
    values = adjacent_pairs(matrix.values.view(torch.uint8), head_dim).view(matrix.values.dtype)
    return BlockScaled(values, matrix.scales)


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """One matrix above the other, so that one product serves all."""
    if all(isinstance(m, BlockScaled) and m.shape[0] % BLOCK == 0 for m in matrices):
        values = torch.cat([m.values.view(torch.uint8) for m in matrices]).view(matrices[0].values.dtype)
        return BlockScaled(values, torch.cat([m.scales for m in matrices]))
    return torch.cat([plain(m, torch.bfloat16) if isinstance(m, BlockScaled) else m for m in matrices])


def product(matrix: Matrix, kind: str | None, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear | ScaledLinear:
    """x Wᵀ + b as fast as the card does it. Its attribute `kind` says how it takes x: see `ScaledLinear`.

    `kind` of scales, or None for products in `dtype`; where the shape has no right product of this kind, the next one.
    """
    kinds = {"block": ("block", "row"), "row": ("row",), None: ()}[kind]
    kind = next((k for k in kinds if can_scale(*matrix.shape, k)), None)
    if kind is None:
        return Linear(plain(matrix, dtype), bias, pack=False)
    if isinstance(matrix, BlockScaled):
        return ScaledLinear(matrix.values, matrix.scales, kind, bias)
    return ScaledLinear.from_plain(matrix, kind, bias)


def mlp(
    gate_up: Linear | ScaledLinear, down: Matrix, kind: str | None, bias: torch.Tensor | None, dtype: torch.dtype
) -> Mlp | BoundedMlp:
    """down(SwiGLU(`gate_up`(x))) + b; `kind`, `bias` and `dtype` of down as of `product`."""
    if BoundedMlp.serves(gate_up):
        return BoundedMlp(gate_up.weight, gate_up.scales.t(), plain(down, torch.float32), bias)
    return Mlp(gate_up, product(down, kind, bias, dtype))
