"""Linear layers over packed rows, and the gated MLP.

On CPUs with oneDNN the weight is laid out once for the matrix unit and the element-wise step behind a product
(silu, times, plus residual) is fused into it; elsewhere plain torch. Both give the same result up to rounding: the
fused form rounds less often.
"""

import torch
import torch.nn.functional as F

from .rows import swiglu

PACK_ROWS = 256  # rows of one product; oneDNN picks the weight's layout for about this many


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN's prepacked linear serves this weight (CPU, float32 or bfloat16)."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class Linear:
    """y = x Wᵀ + b for `x` [rows, in]. `weight` [out, in], `bias` [out] or None."""

    kind = None  # takes plain tensors; see ScaledLinear

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, pack: bool = True):
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.packed = pack and can_pack(weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS) if self.packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x Wᵀ + b."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return residual + F.linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """`plus` in place, for a weight that is not packed."""
        residual.addmm_(x, self.weight.t())
        if self.bias is not None:
            residual += self.bias


class GatedMLP:
    """residual + (silu(x Gᵀ) · (x Uᵀ)) Dᵀ. `gate_up` [2·n, in] = (G over U), `down` [in, n]; biases or None."""

    def __init__(
        self,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        gate_up_bias: torch.Tensor | None = None,
        down_bias: torch.Tensor | None = None,
        pack: bool = True,
    ):
        self.down = Linear(down, down_bias, pack)
        self.packed = self.down.packed and can_pack(gate_up)
        if self.packed:
            biases = (None, None) if gate_up_bias is None else gate_up_bias.chunk(2)
            self.gate, self.up = (Linear(w, b) for w, b in zip(gate_up.chunk(2), biases, strict=True))
        else:
            self.gate_up = Linear(gate_up, gate_up_bias, pack=False)

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`x` and `residual` [rows, in] → [rows, in]."""
        if not self.packed:
            return self.down.plus(swiglu(self.gate_up(x)), residual)
        gate = torch.ops.mkldnn._linear_pointwise(x, self.gate.weight, self.gate.bias, "swish", [], "")
        hidden = torch.ops.mkldnn._linear_pointwise.binary(x, gate, self.up.weight, self.up.bias, "mul")
        return self.down.plus(hidden, residual)
