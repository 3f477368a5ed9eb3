"""Linear layers with FP8 weights on `Quantised` activations, through torch's scaled products, or cuBLASLt itself to add to the residual.

By row: one scale a token and one an output channel. By block: 1 × 128 for activations, 128 × 128 for weights. Results are
bfloat16. Where the card has no such product the weight is kept in bfloat16 and activations arrive unquantised.
"""

import torch
import torch.nn.functional as F

from . import fp8
from .cublaslt import AddingProduct
from .fp8 import Quantised

ROW_MULTIPLE = 4  # rows of a block-scaled product: its scales' columns start at 16-byte addresses


def scaled_kinds(device) -> tuple[str, ...]:
    """The kinds of scales that products on `device` take: both from compute capability 9.0 (Hopper), by row from 8.9, else none."""
    if torch.device(device).type != "cuda":
        return ()
    capability = torch.cuda.get_device_capability(device)
    return fp8.KINDS if capability == (9, 0) else ("row",) if capability >= (8, 9) else ()


def can_scale(out_features: int, in_features: int, kind: str) -> bool:
    """Whether a product of this shape is right: by block torch accepts other widths, and computes them wrongly."""
    return (
        in_features % 512 == out_features % 128 == 0 if kind == "block" else in_features % 16 == out_features % 16 == 0
    )


class ScaledLinear:
    """y = x Wᵀ + b, bfloat16 [rows, out]. `kind` says what it takes: "row" or "block" `Quantised`, None a plain bfloat16 tensor."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, kind: str | None, bias: torch.Tensor | None = None):
        """`weight` e4m3 [out, in], `scales` by row [out, 1] or by block as published, on the device of the product.

        `kind` may differ from how the weight is stored: a block-scaled one is requantised for "row", any is dequantised
        for None. The shape is one that `can_scale`.
        """
        self.out_features, self.in_features = weight.shape
        self.kind, self.bias = kind, bias
        stored_by_row = tuple(scales.shape) == (weight.shape[0], 1)
        if kind is None:
            self.weight = fp8.dequantise_weight(weight, scales).bfloat16()
        elif kind == "row":
            self.weight, scales = (weight, scales) if stored_by_row else fp8.requantise_weight(weight, scales)
            self.scales = scales.t()
        else:
            if stored_by_row:
                weight, scales = fp8.quantise_weight(fp8.dequantise_weight(weight, scales), "block")
            self.weight, self.scales = weight, scales.contiguous().t()
        served = kind is not None and AddingProduct.serves(weight.device)
        self._adding = AddingProduct(self.weight, self.scales, kind) if served else None

    @classmethod
    def from_plain(cls, weight: torch.Tensor, kind: str, bias: torch.Tensor | None = None) -> "ScaledLinear":
        """From a weight that is not quantised yet."""
        return cls(*fp8.quantise_weight(weight, kind), kind, bias)

    def __call__(self, x: Quantised | torch.Tensor) -> torch.Tensor:
        if self.kind is None:
            return F.linear(x, self.weight, self.bias)
        # cuBLAS has no row-scaled product with a bias for every shape.
        out = self._product(x)
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, residual: torch.Tensor, x: Quantised | torch.Tensor) -> None:
        """residual += x Wᵀ + b, in place; bfloat16 [rows, out], contiguous."""
        if self.kind is None:
            residual.addmm_(x, self.weight.t())
        elif not self._added(residual, x):
            residual += self._product(x)
        if self.bias is not None:
            residual += self.bias

    def _added(self, residual: torch.Tensor, x: Quantised) -> bool:
        """Whether one kernel did it."""
        whole = self.kind == "row" or len(residual) % ROW_MULTIPLE == 0
        return whole and self._adding is not None and self._adding.add(x, residual)

    def _product(self, x: Quantised) -> torch.Tensor:
        if self.kind == "block":
            return self._by_block(x)
        return torch._scaled_mm(
            x.values, self.weight.t(), x.scales, self.scales, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def _by_block(self, x: Quantised) -> torch.Tensor:
        rows = len(x.values)
        spare = -rows % ROW_MULTIPLE
        if spare:
            padded = F.pad(x.scales.t(), (0, spare)).t()
            x = Quantised(F.pad(x.values.view(torch.uint8), (0, 0, 0, spare)).view(fp8.FP8), padded)
        return torch._scaled_mm(
            x.values, self.weight.t(), x.scales, self.scales, out_dtype=torch.bfloat16, use_fast_accum=False
        )[:rows]
