"""Qwen3 dense: RMS norm on each head of Q and K before the rotary embedding."""

from .facts import ModelFacts, dense_facts


def facts(hf) -> ModelFacts:
    """From a transformers Qwen3Config."""
    return dense_facts(hf, "Qwen3", qk_norm=True, qkv_bias=hf.attention_bias, o_bias=hf.attention_bias)
