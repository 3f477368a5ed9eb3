"""transformers' model of a checkpoint, with FP8 products emulated: weights and activations quantised, sums in float32."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from quail_spark.kernels import fp8


def reference_model(directory: Path, kind: str | None, device: str):
    """In float32. `kind`: scales of the FP8 products that are emulated, or None for none."""
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


def emulate(model, kind: str) -> None:
    """Quantise the layers' products as the engine does: weights once, activations at each call."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and ".layers." in name:
            with torch.no_grad():
                module.weight.copy_(fp8.dequantise_weight(*fp8.quantise_weight(module.weight, kind)))
            module.register_forward_pre_hook(lambda _, args, kind=kind: (_quantised(args[0], kind), *args[1:]))


def _quantised(x: torch.Tensor, kind: str) -> torch.Tensor:
    flat = x.flatten(0, -2)
    return fp8.dequantise(fp8.quantise(flat, kind)).reshape(x.shape).to(x.dtype)
