"""How attention turns products of queries and keys into exponents of 2, and what head norms (Qwen3's) say of both.

After the norm and its weight w a head's length, and so each element, is at most √dim · max|w|; the rotary embedding changes no
length. Hence FP8 holds queries and keys with one scale for all rows, which goes into the norms' weights.
"""

import math
from typing import NamedTuple

import torch

from .fp8 import FP8_MAX

# Exponents of 2, positive and negative, that attention's weights take where nothing is subtracted first: their sum over a context is
# a float32, and each is cast to the number type of the values, which float16's smallest full-precision number limits.
MOST = {torch.bfloat16: 100, torch.float32: 100, torch.float16: 12}


class Scoring(NamedTuple):
    """`norms`: weights float32 [dim] of the norms of query and key heads in some unit, or None. q·k · `factor` are the exponents.

    `bounded`: none is so large that softmax needs a running maximum. Then `factor` is 1.
    """

    norms: tuple[torch.Tensor, torch.Tensor] | None
    factor: float
    bounded: bool


def plain(norms: tuple[torch.Tensor, torch.Tensor] | None, dim: int, dtype: torch.dtype) -> Scoring:
    """Of queries, keys and values in `dtype`; `norms` as in the checkpoint."""
    if norms is None or not are_bounded(*norms, dtype):
        return Scoring(norms, _factor(dim), False)
    q, k = norms
    return Scoring((q * _factor(dim), k), 1.0, True)


def in_fp8(q_norm: torch.Tensor, k_norm: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> Scoring:
    """Of queries and keys in e4m3, values in `dtype`: neither of the former has an element beyond 448. The norms are as in the checkpoint."""
    q, k, factor = _most(q_norm), _most(k_norm), _factor(q_norm.numel())
    bounded = are_bounded(q_norm, k_norm, dtype)
    largest = math.sqrt(q * k * factor) if bounded else FP8_MAX
    scale_q, scale_k = largest / q, largest / k
    return Scoring((q_norm * scale_q, k_norm * scale_k), 1.0 if bounded else factor / (scale_q * scale_k), bounded)


def are_bounded(q_norm: torch.Tensor, k_norm: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether no score's exponent of 2 is beyond what `dtype` takes, by Cauchy and Schwarz."""
    return _most(q_norm) * _most(k_norm) * _factor(q_norm.numel()) < MOST[dtype]


def _most(norm: torch.Tensor) -> float:
    """Length of a head behind its norm, at most; 1 where that is 0."""
    return math.sqrt(norm.numel()) * float(norm.abs().max()) or 1.0


def _factor(dim: int) -> float:
    """Softmax scale for powers of 2."""
    return math.log2(math.e) / math.sqrt(dim)
