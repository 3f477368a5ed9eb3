"""transformers' model of a checkpoint, with FP8 products emulated: weights and activations quantised, sums in float32."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from quail_spark.kernels import fp8
from quail_spark.kernels.emulated import emulate


def reference_model(directory: Path, kind: str | None, device: str):
    """In float32. `kind` of `emulate`, or None for plain products."""
    raw = json.loads((Path(directory) / "config.json").read_text())
    raw.pop("quantization_config", None)
    config = AutoConfig.for_model(raw["model_type"], **{k: v for k, v in raw.items() if k != "model_type"})
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = {}
    for path in sorted(Path(directory).glob("*.safetensors")):
        tensors |= load_file(path, device=device)
    state = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        scales = tensors.get(name + "_scale_inv")
        state[name] = tensor.float() if scales is None else fp8.dequantise_weight(tensor, scales)
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    if kind:
        emulate(model, kind)
    return model
