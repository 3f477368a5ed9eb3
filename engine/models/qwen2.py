"""Qwen2, Qwen2.5: biases on Q, K and V."""

from .facts import ModelFacts, dense_facts


def facts(hf) -> ModelFacts:
    """From a transformers Qwen2Config."""
    return dense_facts(hf, "Qwen2", qkv_bias=True)
