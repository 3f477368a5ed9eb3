"""Llama 2 and 3, SmolLM2: plain attention; biases where the configuration says so."""

from .facts import ModelFacts, dense_facts


def facts(hf) -> ModelFacts:
    """From a transformers LlamaConfig."""
    bias = hf.attention_bias
    return dense_facts(hf, "Llama", qkv_bias=bias, o_bias=bias, mlp_bias=hf.mlp_bias)
