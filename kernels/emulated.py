"""FP8 products emulated in transformers' models, in float32: an oracle for tests, and for the quality of answers."""

import torch

from . import fp8
from .mlp import fold
from .rows import swiglu

KINDS = (*fp8.KINDS, "bounded")


@torch.no_grad()
def emulate(model, kind: str) -> None:
    """Quantise the layers' products in place: weights now, activations at each call.

    `kind`: scales "row" or "block", or "bounded": by row, and the MLPs as `mlp.BoundedMlp`.
    """
    bounded = kind == "bounded"
    for name, module in model.named_modules():
        if bounded and name.endswith(".mlp"):
            module.forward = _BoundedMlp(module)
        elif isinstance(module, torch.nn.Linear) and ".layers." in name and not (bounded and ".mlp." in name):
            scales = "row" if bounded else kind
            module.weight.copy_(fp8.dequantise_weight(*fp8.quantise_weight(module.weight, scales)))
            module.register_forward_pre_hook(lambda _, args, kind=scales: (_rounded(args[0], kind), *args[1:]))


class _BoundedMlp:
    """The forward of one MLP: float32 [..., hidden] → the same shape."""

    def __init__(self, mlp):
        values, scales = fp8.quantise_weight(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]), "row")
        scales, down = fold(values, scales, mlp.down_proj.weight)
        self._gate_up = fp8.dequantise_weight(values, scales)
        self._down = fp8.dequantise_weight(*fp8.quantise_weight(down, "row"))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = fp8.bound(x.flatten(0, -2))
        mixed = swiglu(fp8.dequantise(fp8.Quantised(*rows[:2])) @ self._gate_up.T)
        values = (mixed / rows.bounds).clamp(-fp8.FP8_MAX, fp8.FP8_MAX).to(fp8.FP8)
        return ((values.float() * rows.bounds) @ self._down.T).reshape(x.shape)


def _rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """`x` [..., columns] after quantisation."""
    return fp8.dequantise(fp8.quantise(x.flatten(0, -2), kind)).reshape(x.shape).to(x.dtype)
