"""Values of attention in units that no output exceeds, so that attention writes FP8 without looking for a row's largest."""

import torch

from . import fp8
from .scaled_linear import ScaledLinear


def can_fold(first: object, o_shape: tuple[int, int], kind: str | None) -> bool:
    """Whether `fold` serves: the products of Q, K, V (`first`) and O, of this shape [out, in], are scaled by row."""
    return kind == "row" == getattr(first, "kind", None) and all(width % 16 == 0 for width in o_shape)


def fold(first: ScaledLinear, norm: torch.Tensor, o: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    """Divides each value channel of `first` by its bound, in place; returns `o` with its columns multiplied by them.

    The last channels of `first` [out, hidden] are the values. `norm` float32 [hidden]: weight of the RMS norm before it. `o`
    float32 [hidden, heads · dim]; each key/value head serves heads / kv_heads query heads, side by side. Attention averages
    values, so what bounds one bounds its output.
    """
    bound = bounds(first, norm, o.shape[1] // heads * kv_heads)
    channels = slice(first.out_features - len(bound), None)
    first.scales[:, channels] /= bound
    if first.bias is not None:
        first.bias[channels] /= bound
    return o * of_query_heads(bound, heads, kv_heads)


def of_query_heads(bound: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    """Bounds of the value channels, for the channels of attention's output: [kv_heads · dim] → [heads · dim]."""
    return bound.unflatten(0, (kv_heads, -1)).repeat_interleave(heads // kv_heads, 0).flatten()


def bounds(first: ScaledLinear, norm: torch.Tensor, count: int) -> torch.Tensor:
    """The most that each of the last `count` channels can be, float32 [count]; 1 where that is 0.

    Before its weight the norm's result has a length of at most √hidden, so |w · x| ≤ √hidden · ‖w · norm‖ (Cauchy and Schwarz).
    """
    weight = fp8.dequantise_weight(first.weight[-count:], first.scales.t()[-count:])
    most = (weight * norm).norm(dim=1) * (norm.numel() ** 0.5 * fp8.ROUNDING)
    if first.bias is not None:
        most += first.bias[-count:].abs()
    return torch.where(most > 0, most, 1.0)
