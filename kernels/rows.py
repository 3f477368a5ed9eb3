"""Plain-torch operations on packed rows. Sums and products run in float32, results are rounded once to the input's dtype."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension (Zhang & Sennrich 2019). `weight` float32; dtype of `x`."""
    return _norm(x, weight, eps).to(x.dtype)


def rope(x: torch.Tensor, turn: torch.Tensor, out: torch.Tensor) -> None:
    """Rotary embedding (Su et al. 2021) of `x` [rows, heads, head_dim] into `out` of the same shape and dtype.

    Dimensions 2i and 2i + 1 are one complex number, turned by `turn` complex64 [rows, head_dim/2]. Checkpoints pair
    i with i + head_dim/2: `adjacent_pairs` reorders their weights, which leaves every q·k as it is.
    """
    _turn(x.float(), turn, out)


def qk_norm_rope(x: torch.Tensor, weight: torch.Tensor, eps: float, turn: torch.Tensor, out: torch.Tensor) -> None:
    """RMS norm over each head (Qwen3), then `rope`. `weight` float32 [heads, head_dim]."""
    _turn(_norm(x, weight, eps), turn, out)


def adjacent_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the first dimension [heads · head_dim, …] so that the two halves of each head interleave."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for `gate_up` [rows, 2·n] = (gate | up) (Shazeer 2020). Returns [rows, n]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up).to(gate_up.dtype)


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()).mul_(weight)


def _turn(wide: torch.Tensor, turn: torch.Tensor, out: torch.Tensor) -> None:
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    out.copy_(torch.view_as_real(pairs * turn.unsqueeze(1)).flatten(-2))
