"""Oracles: the same functions written as plainly as possible, in float32, one segment at a time. For tests."""

import torch

from .ragged import Ragged


def attend(q, k, v, pool_k, pool_v, ragged: Ragged) -> torch.Tensor:
    """Attention of every new token. `q` [rows, heads, dim], `k`, `v` [rows, kv_heads, dim], pools [slots, kv_heads, dim] → like `q`."""
    prefixes = {s: group.slots for group in ragged.groups for s in range(group.first, group.last)}
    parts = []
    for segment in range(len(ragged.starts) - 1):
        rows = slice(ragged.starts[segment], ragged.starts[segment + 1])
        slots = prefixes.get(segment, torch.empty(0, dtype=torch.long))
        keys = torch.cat([pool_k[slots], k[rows]]).float()
        values = torch.cat([pool_v[slots], v[rows]]).float()
        parts.append(_one_segment(q[rows].float(), keys, values))
    return torch.cat(parts).to(q.dtype)


def attend_last(q, k, v, pool_k, pool_v, ragged: Ragged) -> torch.Tensor:
    """Attention of the last token of each answering segment: `q` [answers, heads, dim] → like `q`."""
    full = torch.zeros(k.shape[0], *q.shape[1:], dtype=q.dtype)
    rows = [ragged.starts[s + 1] - 1 for s in ragged.answers]
    full[rows] = q
    return attend(full, k, v, pool_k, pool_v, ragged)[rows]


def _one_segment(q, keys, values):
    """`q` are the last len(q) tokens of `keys`."""
    repeat = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * q.shape[-1] ** -0.5
    hidden = torch.ones(len(q), len(keys), dtype=torch.bool).triu(len(keys) - len(q) + 1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


def rms_norm(x, weight, eps):
    """RMS norm in float64."""
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def rope(x, cos, sin):
    """Rotary embedding of [rows, heads, dim] as checkpoints spell it (rotate-half), `cos`, `sin` [rows, dim/2], in float64."""
    x = x.double()
    half = x.shape[-1] // 2
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * torch.cat([cos, cos], -1)[:, None].double() + rotated * torch.cat([sin, sin], -1)[:, None].double()


def gated_mlp(x, residual, gate_up, down):
    """residual + (silu(x Gᵀ) · (x Uᵀ)) Dᵀ in float64."""
    gate, up = (x.double() @ gate_up.double().T).chunk(2, -1)
    return residual.double() + (gate * torch.sigmoid(gate) * up) @ down.double().T
