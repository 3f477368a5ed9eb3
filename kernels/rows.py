"""Plain-torch operations on packed rows. Sums and products run in float32, results are rounded once to the input's dtype."""

from functools import cache

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang & Sennrich 2019). `weight` float32; dtype of `x`."""
    return _norm_(_wide(x), weight, eps).to(x.dtype)


def rope(x: torch.Tensor, heads: int, turn: torch.Tensor, out: torch.Tensor) -> None:
    """Rotary embedding (Su et al. 2021) of the first `heads` of `x` [rows, all heads, head_dim]; the rest is copied.

    Writes `out`, of the same shape and dtype. Dimensions 2i and 2i + 1 are one complex number, turned by `turn`
    complex64 [rows, 1, head_dim/2]. Checkpoints pair i with i + head_dim/2: `adjacent_pairs` reorders their weights,
    which leaves every q·k as it is.
    """
    wide = _wide(x)
    _turn_(wide[:, :heads], turn)
    out.copy_(wide)


def qk_norm_rope(x: torch.Tensor, weight: torch.Tensor, eps: float, turn: torch.Tensor, out: torch.Tensor) -> None:
    """`rope` of the first heads of `x`, after an RMS norm over each (Qwen3): those that `weight` float32 [heads, head_dim] has."""
    wide = _wide(x)
    _turn_(_norm_(wide[:, : len(weight)], weight, eps), turn)
    out.copy_(wide)


def adjacent_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the first dimension [heads · head_dim, …] so that the two halves of each head interleave."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for `gate_up` [rows, 2·n] = (gate | up) (Shazeer 2020). Returns [rows, n]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up).to(gate_up.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """A float32 copy, to be worked on in place."""
    return x.to(torch.float32, copy=True)


def _norm_(wide: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(_scalar(eps), length, length, value=1 / wide.shape[-1]).rsqrt_()
    return wide.mul_(scale).mul_(weight)


@cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


def _turn_(wide: torch.Tensor, turn: torch.Tensor) -> None:
    torch.view_as_complex(wide.unflatten(-1, (-1, 2))).mul_(turn)
