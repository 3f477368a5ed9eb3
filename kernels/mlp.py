"""The MLP of a decoder layer on a GPU: gate-up product, SwiGLU, down product."""

import torch

from . import fp8
from .fp8 import Bounded, Quantised
from .launching import on_hopper
from .linear import Linear
from .scaled_linear import ScaledLinear
from .triton_quantise import swiglu

PART = 4096  # rows of a weight that are taken out of FP8 at a time


class Mlp:
    """One kernel after the other. `kind` says how it takes its rows: see `ScaledLinear`."""

    def __init__(self, gate_up: Linear | ScaledLinear, down: Linear | ScaledLinear):
        self.kind, self._gate_up, self._down = gate_up.kind, gate_up, down

    def add_to(self, residual: torch.Tensor, x) -> None:
        """residual += the MLP of `x`, in place; [rows, hidden]."""
        self._down.add_to(residual, swiglu(self._gate_up(x), self._down.kind))


class BoundedMlp:
    """By row on Hopper, with SwiGLU in the product's epilogue (`gluon_gate_up`). Takes `Bounded` rows."""

    kind = "bounded"

    def __init__(
        self, gate_up: torch.Tensor, scales: torch.Tensor, down: torch.Tensor, bias: torch.Tensor | None = None
    ):
        """`gate_up` e4m3 [2·n, hidden] = (gate | up) with scales float32 [2·n, 1], `down` [hidden, n] without scales, its bias."""
        from .gluon_gate_up import COLUMNS, pieces  # Gluon needs the card

        self._scales, down = fold(gate_up, scales, down)
        self._gate_up, self._down = pieces(gate_up, COLUMNS), ScaledLinear.from_plain(down, "row", bias)

    @staticmethod
    def serves(gate_up: Linear | ScaledLinear) -> bool:
        """Whether it may take this gate-up product's place."""
        if gate_up.kind != "row" or gate_up.bias is not None or gate_up.in_features % 128 or gate_up.out_features % 256:
            return False
        return on_hopper(gate_up.weight.device)

    def add_to(self, residual: torch.Tensor, x: Bounded) -> None:
        """As of `Mlp`."""
        from .gluon_gate_up import gate_up_swiglu

        self._down.add_to(residual, Quantised(gate_up_swiglu(*x, self._gate_up, self._scales), x.bounds))


def fold(gate_up: torch.Tensor, scales: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(scales, down) with which |gate · up| ≤ ‖x‖² in every channel and down(SwiGLU) stays what it is.

    `gate_up` e4m3 [2·n, hidden] = (gate | up), `scales` float32 [2·n, 1], `down` [hidden, n]; `down` returns in float32.
    Over all x of length 1, |(x·g)(x·u)| is at most (‖g‖ ‖u‖ + |g·u|) / 2, the largest eigenvalue of (guᵀ + ugᵀ) / 2. By
    that each up row is divided and each column of `down` multiplied.
    """
    (gate, of_gate), (up, of_up) = zip(gate_up.chunk(2), scales.chunk(2), strict=True)
    bounds = []
    for part in range(0, len(gate), PART):
        rows = slice(part, part + PART)
        g, u = fp8.dequantise_weight(gate[rows], of_gate[rows]), fp8.dequantise_weight(up[rows], of_up[rows])
        bounds.append((g.norm(dim=1) * u.norm(dim=1) + (g * u).sum(1).abs()) / 2)
    bound = torch.cat(bounds)
    channel = torch.where(bound > 0, bound, 1.0)
    return torch.cat([of_gate, of_up / channel[:, None]]), down.float() * channel
