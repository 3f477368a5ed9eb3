"""Weights from a directory of safetensors, read tensor by tensor, cast and fused."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from quail_spark.optimizer.errors import ModelError

from .models import FAMILIES
from .models.decoder import Decoder, HeadRows, Layer
from .models.facts import ModelFacts


def read_facts(directory: Path) -> ModelFacts:
    """Facts of the checkpoint in `directory`. Raises ModelError for a configuration that is not supported."""
    from transformers import AutoConfig

    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"{directory} has no config.json; accepted: a directory of safetensors with its configuration")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    accepted = ", ".join(FAMILIES)
    name = next(iter(raw.get("architectures") or []), None)
    if name not in FAMILIES:
        raise ModelError(
            f"{directory}: the architecture {name or raw.get('model_type')!r} is not supported; accepted: {accepted}"
        )
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"{directory}: weights are quantised ({method}); accepted: float32, bfloat16 or float16 weights, or a GGUF file"
        )
    try:
        hf = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{path} can't be read as a configuration: {error}") from error
    return FAMILIES[name](hf)


def load_decoder(directory: Path, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The model of `directory` on `device`. Raises ModelError when files or tensors are missing or of another shape."""
    facts = read_facts(directory)
    with torch.inference_mode(), Tensors(directory, device, dtype) as tensors:
        embedding = tensors.get("model.embed_tokens.weight", (facts.vocab, facts.hidden))
        head = _rows_of(embedding) if facts.tied else tensors.rows("lm_head.weight", (facts.vocab, facts.hidden))
        layers = [_layer(tensors, facts, index) for index in range(facts.layers)]
        return Decoder(facts, embedding, layers, tensors.get("model.norm.weight", (facts.hidden,)), head)


def _rows_of(embedding: torch.Tensor) -> HeadRows:
    return lambda ids: embedding[torch.tensor(ids, device=embedding.device)].float()


def _layer(tensors: "Tensors", facts: ModelFacts, index: int) -> Layer:
    q, kv, hidden, inner = (
        facts.heads * facts.head_dim,
        facts.kv_heads * facts.head_dim,
        facts.hidden,
        facts.intermediate,
    )
    attention = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    biased = ("q", "k", "v") * facts.qkv_bias + ("o",) * facts.o_bias + tuple(mlp) * facts.mlp_bias
    prefix, weights = f"model.layers.{index}.", {}
    for part, shapes in (("self_attn", attention), ("mlp", mlp)):
        for name, shape in shapes.items():
            weights[name] = tensors.get(f"{prefix}{part}.{name}_proj.weight", shape)
            if name in biased:
                weights[f"{name}_bias"] = tensors.get(f"{prefix}{part}.{name}_proj.bias", shape[:1])
    weights["attention_norm"] = tensors.get(f"{prefix}input_layernorm.weight", (hidden,))
    weights["mlp_norm"] = tensors.get(f"{prefix}post_attention_layernorm.weight", (hidden,))
    if facts.qk_norm:
        weights["q_norm"] = tensors.get(f"{prefix}self_attn.q_norm.weight", (facts.head_dim,))
        weights["k_norm"] = tensors.get(f"{prefix}self_attn.k_norm.weight", (facts.head_dim,))
    return Layer(facts, weights, last=index == facts.layers - 1)


class Tensors:
    """The named tensors of all safetensors files of a directory, cast to one dtype on one device. A context manager."""

    def __init__(self, directory: Path, device: torch.device, dtype: torch.dtype):
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{directory} has no *.safetensors file; accepted: weights as safetensors, or a GGUF file")
        self.directory, self.device, self.dtype = directory, device, dtype
        self.open = []
        self.where, self.paths = {}, {}
        for path in files:
            try:
                handle = safe_open(path, framework="pt", device="cpu").__enter__()
            except Exception as error:
                self.__exit__()
                raise ModelError(f"{path} is not a whole safetensors file: {error}") from error
            self.open.append(handle)
            self.where.update(dict.fromkeys(handle.keys(), handle))
            self.paths.update(dict.fromkeys(handle.keys(), path))

    def __enter__(self) -> "Tensors":
        return self

    def __exit__(self, *_) -> None:
        for handle in self.open:
            handle.__exit__(None, None, None)
        self.open = []

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor by its name. Raises ModelError when it is missing, or has another shape or a quantised type."""
        self._check(name, shape)
        return self.where[name].get_tensor(name).to(self.device, self.dtype)

    def rows(self, name: str, shape: tuple[int, ...]) -> HeadRows:
        """A reader of single rows, float32, straight from the file. Raises like `get`, now; the files must stay."""
        self._check(name, shape)
        path = self.paths[name]

        def read(ids: Sequence[int]) -> torch.Tensor:
            with safe_open(path, framework="pt", device="cpu") as handle:
                rows = handle.get_slice(name)
                return torch.cat([rows[i : i + 1] for i in ids]).to(self.device, torch.float32)

        return read

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self.where:
            raise ModelError(f"{self.directory}: the checkpoint has no tensor {name!r}")
        tensor = self.where[name].get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise ModelError(
                f"{self.directory}: tensor {name!r} has shape {tuple(tensor.get_shape())}; the configuration says {shape}"
            )
        if tensor.get_dtype() not in ("F32", "BF16", "F16"):
            raise ModelError(
                f"{self.directory}: tensor {name!r} is {tensor.get_dtype()}; accepted: F32, BF16, F16 (float32, bfloat16, float16)"
            )
