"""Weights from a directory of safetensors, read tensor by tensor, cast and fused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open

from quail_spark.kernels.fp8 import BLOCK
from quail_spark.optimizer.errors import ModelError

from .models import FAMILIES
from .models.decoder import Decoder, HeadRows, Layer
from .models.facts import ModelFacts
from .models.weights import BlockScaled, Matrix, plain

if TYPE_CHECKING:
    from .models.cuda_decoder import CudaDecoder

HEAD = "lm_head.weight"
SCALES = "_scale_inv"  # name of a matrix's scales, behind its own


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
    _check_quantisation(directory, raw.get("quantization_config") or {})
    try:
        hf = AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:
        raise ModelError(f"{path} can't be read as a configuration: {error}") from error
    return FAMILIES[name](hf)


def _check_quantisation(directory: Path, config: dict) -> None:
    """Block-scaled FP8 as published for Qwen3 and DeepSeek-V3: `weight` e4m3, `weight_scale_inv` for each 128 × 128."""
    given = (config.get("quant_method"), config.get("weight_block_size"), config.get("activation_scheme", "dynamic"))
    if config and given != ("fp8", [BLOCK, BLOCK], "dynamic"):
        raise ModelError(
            f"{directory}: weights are quantised ({given[0]}, blocks {given[1]}, activations {given[2]}); accepted: "
            f"fp8 with blocks [{BLOCK}, {BLOCK}] and dynamic activations, float32, bfloat16 or float16 weights, or a GGUF file"
        )


def load_decoder(
    directory: Path, device: torch.device, dtype: torch.dtype, fp8: str | None = None, triton: bool | None = None
) -> "Decoder | CudaDecoder":
    """The model of `directory` on `device`. Raises ModelError when files or tensors are missing or of another shape.

    `fp8` on a GPU: `row` or `block` scales for all products, `auto` row scales if the checkpoint is in FP8, None for none.
    `triton`: the decoder over the GPU's kernels; by default where `device` is one (tests run it in Triton's interpreter).
    """
    facts = read_facts(directory)
    with torch.inference_mode(), Tensors(directory, device, dtype) as tensors:
        embedding = tensors.get("model.embed_tokens.weight", (facts.vocab, facts.hidden))
        # A head of its own counts, also where the configuration ties it to the embedding: transformers does the same.
        tied = facts.tied and HEAD not in tensors
        head = _rows_of(embedding) if tied else tensors.rows(HEAD, (facts.vocab, facts.hidden))
        norm = tensors.get("model.norm.weight", (facts.hidden,))
        if fp8 == "auto":
            fp8 = "row" if tensors.in_fp8 else None
        weights = (_weights(tensors, facts, index) for index in range(facts.layers))
        if triton or (triton is None and device.type == "cuda"):
            from quail_spark.kernels.triton_ragged import can_attend  # Triton, where there is a card

            from .models.cuda_decoder import CudaDecoder, CudaLayer

            if not can_attend(facts.heads, facts.kv_heads, facts.head_dim):
                raise ModelError(
                    f"{directory}: {facts.heads} attention heads over {facts.kv_heads} of {facts.head_dim} dimensions are "
                    "not computed on a GPU; accepted: heads of 16, 32, 64 or 128 dimensions; or spark.quail.device=cpu"
                )
            layers = [CudaLayer(facts, w, i == facts.layers - 1, fp8, dtype) for i, w in enumerate(weights)]
            return CudaDecoder(facts, embedding, layers, norm, head, fp8)
        cast = ({name: plain(matrix, dtype) for name, matrix in w.items()} for w in weights)
        layers = [Layer(facts, w, i == facts.layers - 1) for i, w in enumerate(cast)]
        return Decoder(facts, embedding, layers, norm, head)


def _rows_of(embedding: torch.Tensor) -> HeadRows:
    return lambda ids: embedding[torch.tensor(ids, device=embedding.device)].float()


def _weights(tensors: "Tensors", facts: ModelFacts, index: int) -> dict[str, Matrix]:
    """Of one layer, under short names (see `decoder.Layer`)."""
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
            weights[name] = tensors.matrix(f"{prefix}{part}.{name}_proj.weight", shape)
            if name in biased:
                weights[f"{name}_bias"] = tensors.get(f"{prefix}{part}.{name}_proj.bias", shape[:1])
    weights["attention_norm"] = tensors.get(f"{prefix}input_layernorm.weight", (hidden,))
    weights["mlp_norm"] = tensors.get(f"{prefix}post_attention_layernorm.weight", (hidden,))
    if facts.qk_norm:
        weights["q_norm"] = tensors.get(f"{prefix}self_attn.q_norm.weight", (facts.head_dim,))
        weights["k_norm"] = tensors.get(f"{prefix}self_attn.k_norm.weight", (facts.head_dim,))
    return weights


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
                handle = safe_open(path, framework="pt", device=str(device)).__enter__()
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

    def __contains__(self, name: str) -> bool:
        return name in self.where

    @property
    def in_fp8(self) -> bool:
        """Whether some matrix is in FP8."""
        return any(name.endswith(SCALES) for name in self.where)

    def matrix(self, name: str, shape: tuple[int, ...]) -> Matrix:
        """A matrix by its name, plain or block-scaled. Raises like `get`."""
        if name + SCALES not in self:
            return self.get(name, shape)
        self._check(name, shape, ("F8_E4M3",))
        scales = self.where[name + SCALES].get_tensor(name + SCALES)
        blocks = tuple(-(-size // BLOCK) for size in shape)
        if tuple(scales.shape) != blocks:
            raise ModelError(
                f"{self.directory}: tensor {name + SCALES!r} has shape {tuple(scales.shape)}; accepted: {blocks}"
            )
        return BlockScaled(self.where[name].get_tensor(name).to(self.device), scales.to(self.device, torch.float32))

    def rows(self, name: str, shape: tuple[int, ...]) -> HeadRows:
        """A reader of single rows, float32, straight from the file. Raises like `get`, now; the files must stay."""
        self._check(name, shape)
        path = self.paths[name]

        def read(ids: Sequence[int]) -> torch.Tensor:
            with safe_open(path, framework="pt", device="cpu") as handle:
                rows = handle.get_slice(name)
                return torch.cat([rows[i : i + 1] for i in ids]).to(self.device, torch.float32)

        return read

    def _check(self, name: str, shape: tuple[int, ...], types: tuple[str, ...] = ("F32", "BF16", "F16")) -> None:
        if name not in self:
            raise ModelError(f"{self.directory}: the checkpoint has no tensor {name!r}")
        tensor = self.where[name].get_slice(name)
        if tuple(tensor.get_shape()) != shape:
            raise ModelError(
                f"{self.directory}: tensor {name!r} has shape {tuple(tensor.get_shape())}; the configuration says {shape}"
            )
        if tensor.get_dtype() not in types:
            raise ModelError(
                f"{self.directory}: tensor {name!r} is {tensor.get_dtype()}; accepted: {', '.join(types)}"
                + (", or F8_E4M3 with its scales beside it" if len(types) > 1 else "")
            )
