"""Tiny random checkpoints, and transformers' own logits for them."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCAB = 211
SHAPE = {"vocab_size": VOCAB, "num_hidden_layers": 3, "max_position_embeddings": 512, "hidden_size": 48}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
KINDS = {
    "qwen2": lambda: Qwen2Config(
        **SHAPE, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True
    ),
    "qwen2_yarn": lambda: Qwen2Config(
        **SHAPE, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, rope_parameters=YARN
    ),
    "qwen3": lambda: Qwen3Config(
        **SHAPE, intermediate_size=112, num_attention_heads=4, num_key_value_heads=1, head_dim=64
    ),
    "llama": lambda: LlamaConfig(**SHAPE, intermediate_size=96, num_attention_heads=3, num_key_value_heads=3),
    "llama3": lambda: LlamaConfig(
        **SHAPE,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_parameters=LLAMA3,
    ),
}
CLASSES = {"Qwen2": Qwen2ForCausalLM, "Qwen3": Qwen3ForCausalLM, "Llama": LlamaForCausalLM}


def write(kind: str, directory: Path, seed: int = 0):
    """Save a random checkpoint of `kind` (every tensor random, biases and norms too); returns transformers' model."""
    torch.manual_seed(seed)
    config = KINDS[kind]()
    model = CLASSES[type(config).__name__.removesuffix("Config")](config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(directory)
    return model


def reference(model, tokens: np.ndarray, answer_ids) -> np.ndarray:
    """transformers' logits at the last token, without cache or padding."""
    with torch.no_grad():
        logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits
    return logits[0, -1, list(answer_ids)].float().numpy()


def text(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random token ids, int32 [count]."""
    return rng.integers(0, VOCAB, count).astype(np.int32)
