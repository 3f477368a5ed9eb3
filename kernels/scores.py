"""How attention turns products of queries and keys into exponents of 2, and what head norms (Qwen3's) say of both.

After the norm and its weight w a head's length, and so each element, is at most √dim · max|w|; the rotary embedding changes no
length. Hence FP8 holds queries and keys with one scale for all rows, which goes into the norms' weights.
"""

import math
from typing import NamedTuple

import torch

from .fp8 import FP8_MAX

MOST = 100  # exponents of 2 whose sum over a context is surely a float32


class Scoring(NamedTuple):
    """`norms`: weights float32 [dim] of the norms of query and key heads in some unit, or None. q·k · `factor` are the exponents.

    `bounded`: none is so large that softmax needs a running maximum. Then `factor` is 1.
    """

    norms: tuple[torch.Tensor, torch.Tensor] | None
    factor: float
    bounded: bool


def plain(norms: tuple[torch.Tensor, torch.Tensor] | None, dim: int) -> Scoring:
    """Of queries and keys in the model's number type; `norms` as in the checkpoint."""
    if norms is None or not are_bounded(*norms):
        return Scoring(norms, _factor(dim), False)
    q, k = norms
    return Scoring((q * _factor(dim), k), 1.0, True)


def in_fp8(q_norm: torch.Tensor, k_norm: torch.Tensor) -> Scoring:
    """Of queries and keys in e4m3: neither has an element beyond 448. The norms are as in the checkpoint."""
    q, k, factor = _most(q_norm), _most(k_norm), _factor(q_norm.numel())
    bounded = are_bounded(q_norm, k_norm)
    largest = math.sqrt(q * k * factor) if bounded else FP8_MAX
    scale_q, scale_k = largest / q, largest / k
    return Scoring((q_norm * scale_q, k_norm * scale_k), 1.0 if bounded else factor / (scale_q * scale_k), bounded)


def are_bounded(q_norm: torch.Tensor, k_norm: torch.Tensor) -> bool:
    """Whether no score's exponent of 2 is beyond MOST, by Cauchy and Schwarz."""
    return _most(q_norm) * _most(k_norm) * _factor(q_norm.numel()) < MOST


def _most(norm: torch.Tensor) -> float:
    """Length of a head behind its norm, at most; 1 where that is 0."""
    return math.sqrt(norm.numel()) * float(norm.abs().max()) or 1.0


def _factor(dim: int) -> float:
    """Softmax scale for powers of 2."""
    return math.log2(math.e) / math.sqrt(dim)
