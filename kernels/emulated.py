"""FP8 products emulated in transformers' models, in float32: an oracle for tests, and for the quality of answers."""

import torch

from . import fp8, mlp, scores, values
from .rows import swiglu
from .scaled_linear import ScaledLinear

KINDS = (*fp8.KINDS, "bounded")
SCORES = "sdpa_fp8_scores"


@torch.no_grad()
def emulate(model, kind: str) -> None:
    """Quantise the layers' products in place: weights now, activations at each call.

    `kind`: scales "row" or "block", or "bounded": by row, attention's output as of `values.fold` and the MLPs as `mlp.BoundedMlp`.
    """
    if kind == "bounded":
        for layer in model.model.layers:
            layer.mlp.forward = _BoundedMlp(layer.mlp)
            _bound_values(layer, model.config)
            for name in "qkv":
                _quantise(getattr(layer.self_attn, f"{name}_proj"), "row")
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            _quantise(module, kind)


def round_scores(model) -> None:
    """Queries and keys in e4m3, in place: in units of their bounds, or without head norms of each one's largest element."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(SCORES, _attend)
    AttentionMaskInterface.register(SCORES, sdpa_mask)
    model.set_attn_implementation(SCORES)


def _attend(module, query, key, *args, **kwargs):
    """As transformers calls it; heads [batch, heads, tokens, dim]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if hasattr(module, "q_norm"):
        norms = (module.q_norm.weight, module.k_norm.weight)
        scales = [unit.norm() / norm.norm() for unit, norm in zip(scores.in_fp8(*norms).norms, norms, strict=True)]
        query, key = (
            (x * scale).to(fp8.FP8).to(x.dtype) / scale for x, scale in zip((query, key), scales, strict=True)
        )
    else:
        query, key = (_rounded(x, "row") for x in (query, key))
    return sdpa_attention_forward(module, query, key, *args, **kwargs)


def _quantise(linear: torch.nn.Linear, kind: str) -> None:
    linear.weight.copy_(fp8.dequantise_weight(*fp8.quantise_weight(linear.weight, kind)))
    linear.register_forward_pre_hook(lambda _, args: (_rounded(args[0], kind), *args[1:]))


def _bound_values(layer, config) -> None:
    """The O product of one layer: its input in units of the values' bounds, in FP8 without a scale of its own."""
    attention = layer.self_attn
    o, v = attention.o_proj, attention.v_proj
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    product = ScaledLinear(*fp8.quantise_weight(v.weight, "row"), "row", None if v.bias is None else v.bias.clone())
    norm = layer.input_layernorm.weight
    bound = values.bounds(product, norm, len(v.weight))
    folded = values.fold(product, norm, o.weight.float(), heads, kv_heads)
    o.weight.copy_(fp8.dequantise_weight(*fp8.quantise_weight(folded, "row")))
    units = values.of_query_heads(bound, heads, kv_heads)

    def in_units(_, args):
        mixed = (args[0] / units * fp8.FP8_MAX).clamp(-fp8.FP8_MAX, fp8.FP8_MAX).to(fp8.FP8)
        return (mixed.to(args[0].dtype) / fp8.FP8_MAX, *args[1:])

    o.register_forward_pre_hook(in_units)


class _BoundedMlp:
    """The forward of one MLP: float32 [..., hidden] → the same shape."""

    def __init__(self, module):
        rows, scales = fp8.quantise_weight(torch.cat([module.gate_proj.weight, module.up_proj.weight]), "row")
        scales, down = mlp.fold(rows, scales, module.down_proj.weight)
        self._gate_up = fp8.dequantise_weight(rows, scales)
        self._down = fp8.dequantise_weight(*fp8.quantise_weight(down, "row"))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = fp8.bound(x.flatten(0, -2))
        mixed = swiglu(fp8.dequantise(fp8.Quantised(*rows[:2])) @ self._gate_up.T)
        values = (mixed / rows.bounds).clamp(-fp8.FP8_MAX, fp8.FP8_MAX).to(fp8.FP8)
        return ((values.float() * rows.bounds) @ self._down.T).reshape(x.shape)


def _rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """`x` [..., columns] after quantisation."""
    return fp8.dequantise(fp8.quantise(x.flatten(0, -2), kind)).reshape(x.shape).to(x.dtype)
