"""Rotary frequencies: plain, linear, Llama 3 and YaRN scaling."""

import math
from dataclasses import dataclass, field

import torch

from quail_spark.optimizer.errors import ModelError


@dataclass(frozen=True)
class Rope:
    """`kind` with its `parameters` as in the checkpoint's `rope_parameters`; `theta` is the base wavelength."""

    kind: str
    theta: float
    parameters: dict = field(default_factory=dict, hash=False)


def read_rope(hf, family: str) -> Rope:
    """From a transformers 5 configuration (which folds the older `rope_theta` and `rope_scaling` into `rope_parameters`)."""
    parameters = dict(hf.rope_parameters or {})
    kind = parameters.get("rope_type", "default")
    if kind not in FREQUENCIES:
        raise ModelError(f"{family}: rope type {kind!r} is not supported; accepted: {', '.join(FREQUENCIES)}")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(
            f"{family}: partial_rotary_factor is {parameters['partial_rotary_factor']}; accepted: 1.0 (the whole head rotates)"
        )
    if kind == "yarn":
        parameters.setdefault("original_max_position_embeddings", hf.max_position_embeddings)
    for name in ("rope_theta", *NEEDED[kind]):
        if not isinstance(parameters.get(name), int | float):
            raise ModelError(
                f"{family}: the rope parameter {name} is {parameters.get(name)!r}; accepted: a number, the same for all layers"
            )
    return Rope(kind, float(parameters["rope_theta"]), parameters)


def rotary(rope: Rope, head_dim: int, positions: torch.Tensor) -> torch.Tensor:
    """magnitude · e^(i · angle), complex64 [rows, head_dim/2], for int64 `positions` [rows]."""
    frequencies, magnitude = FREQUENCIES[rope.kind](rope, head_dim)
    angles = positions.float()[:, None] * frequencies.to(positions.device)
    return torch.polar(torch.full_like(angles, magnitude), angles)


def _plain(rope: Rope, dim: int):
    return 1.0 / rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim), 1.0


def _linear(rope: Rope, dim: int):
    """Position interpolation (Chen et al. 2023)."""
    return _plain(rope, dim)[0] / rope.parameters["factor"], 1.0


def _llama3(rope: Rope, dim: int):
    """Llama 3.1: long wavelengths are stretched, short ones kept, the band between blends."""
    p = rope.parameters
    frequencies = _plain(rope, dim)[0]
    wavelength = 2 * math.pi / frequencies
    low, high, span = p["low_freq_factor"], p["high_freq_factor"], p["original_max_position_embeddings"]
    blend = ((span / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / p["factor"] + blend * frequencies, 1.0


def _yarn(rope: Rope, dim: int):
    """YaRN (Peng et al. 2023): interpolate by wavelength between two rotation counts, and scale cos and sin."""
    p = rope.parameters
    factor, span = p["factor"], p["original_max_position_embeddings"]

    def dimension_of(rotations: float) -> float:
        return dim * math.log(span / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_of(p.get("beta_fast") or 32), dimension_of(p.get("beta_slow") or 1)
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)).clamp(0, 1)
    frequencies = _plain(rope, dim)[0]
    return frequencies / factor * ramp + frequencies * (1 - ramp), _yarn_magnitude(p)


def _yarn_magnitude(p: dict) -> float:
    def magnitude(scale: float, weight: float) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    if p.get("attention_factor") is not None:
        return p["attention_factor"]
    if p.get("mscale") and p.get("mscale_all_dim"):
        return magnitude(p["factor"], p["mscale"]) / magnitude(p["factor"], p["mscale_all_dim"])
    return magnitude(p["factor"], 1.0)


NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
FREQUENCIES = {"default": _plain, "linear": _linear, "llama3": _llama3, "yarn": _yarn}
