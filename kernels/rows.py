"""Plain-torch operations on single rows. Sums and products run in float32, results are rounded once to the input's dtype."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension; any shape, dtype of `x` (Zhang & Sennrich 2019)."""
    wide = x.float()
    scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight.float()).to(x.dtype)


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, halves convention (Su et al. 2021; GPT-NeoX layout).

    `x` [rows, heads, head_dim]; `cos`, `sin` float32 [rows, head_dim/2]. Returns a new tensor of x's shape and dtype.
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    half = x.shape[-1] // 2
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out.to(x.dtype)


def qk_norm_rope(
    x: torch.Tensor, weight: torch.Tensor, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """RMS norm over each head (Qwen3), then `rope`. `x` [rows, heads, head_dim], `weight` [head_dim]."""
    return rope(rms_norm(x, weight, eps), cos, sin)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up for `gate_up` [rows, 2·n] = (gate | up) (Shazeer 2020). Returns [rows, n]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up).to(gate_up.dtype)
