"""What planning must know of a model: how much arithmetic and KV a token costs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ModelError

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True)
class ModelSpec:
    """Shapes of a dense decoder with a gated MLP. `tied`: input and output embeddings are one matrix."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False

    @property
    def linear_weights(self) -> int:
        """Weights that every token meets: Q, K, V, O, gate, up and down of all layers; no embeddings."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def linear_flops(self) -> int:
        """FLOPs of the linear layers for one token: a multiplication and an addition per weight."""
        return 2 * self.linear_weights

    @property
    def pair_flops(self) -> int:
        """FLOPs of attention for one (query token, key token) pair over all layers: QKᵀ and PV, heads × head_dim each."""
        return 4 * self.layers * self.heads * self.head_dim

    def kv_bytes(self, dtype: str = "bfloat16") -> int:
        """Bytes of K and V of one token over all layers. Raises ModelError for an unknown dtype."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _item_bytes(dtype)

    def weight_bytes(self, dtype: str = "bfloat16") -> int:
        """Bytes of all matrices, embeddings included; norms and biases are left out."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return (self.linear_weights + embeddings) * _item_bytes(dtype)

    @staticmethod
    def from_config(config: Mapping[str, object], name: str = "") -> "ModelSpec":
        """From the object in a transformers `config.json`. Raises ModelError for a missing field, or a mixture of experts."""
        experts = [key for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)]
        if experts:
            raise ModelError(f"the configuration of {name or 'the model'} has {experts[0]}; accepted: dense decoders")
        heads = _whole(config, "num_attention_heads", name)
        hidden = _whole(config, "hidden_size", name)
        return ModelSpec(
            name=name or str(config.get("_name_or_path") or config.get("model_type") or "model"),
            layers=_whole(config, "num_hidden_layers", name),
            hidden=hidden,
            intermediate=_whole(config, "intermediate_size", name),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocab=_whole(config, "vocab_size", name),
            tied=bool(config.get("tie_word_embeddings", False)),
        )


def _item_bytes(dtype: str) -> int:
    if dtype not in ITEM_BYTES:
        raise ModelError(f"number type is {dtype!r}; accepted: {', '.join(ITEM_BYTES)}")
    return ITEM_BYTES[dtype]


def _whole(config: Mapping[str, object], key: str, name: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise ModelError(
            f"{key} in the configuration of {name or 'the model'} is {value!r}; accepted: a positive number"
        )
    return value


# name, layers, hidden, intermediate, heads, KV heads, head dim, vocabulary, tied: as in the published config.json
KNOWN_MODELS = (
    ModelSpec("qwen3-0.6b", 28, 1024, 3072, 16, 8, 128, 151_936, True),
    ModelSpec("qwen3-1.7b", 28, 2048, 6144, 16, 8, 128, 151_936, True),
    ModelSpec("qwen3-4b", 36, 2560, 9728, 32, 8, 128, 151_936, True),
    ModelSpec("qwen3-8b", 36, 4096, 12_288, 32, 8, 128, 151_936),
    ModelSpec("qwen3-14b", 40, 5120, 17_408, 40, 8, 128, 151_936),
    ModelSpec("qwen3-32b", 64, 5120, 25_600, 64, 8, 128, 151_936),
    ModelSpec("qwen2.5-0.5b", 24, 896, 4864, 14, 2, 64, 151_936, True),
    ModelSpec("qwen2.5-1.5b", 28, 1536, 8960, 12, 2, 128, 151_936, True),
    ModelSpec("qwen2.5-3b", 36, 2048, 11_008, 16, 2, 128, 151_936, True),
    ModelSpec("qwen2.5-7b", 28, 3584, 18_944, 28, 4, 128, 152_064),
    ModelSpec("qwen2.5-14b", 48, 5120, 13_824, 40, 8, 128, 152_064),
    ModelSpec("qwen2.5-32b", 64, 5120, 27_648, 40, 8, 128, 152_064),
    ModelSpec("qwen2.5-72b", 80, 8192, 29_568, 64, 8, 128, 152_064),
    ModelSpec("llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128_256, True),
    ModelSpec("llama-3.2-3b", 28, 3072, 8192, 24, 8, 128, 128_256, True),
    ModelSpec("llama-3.1-8b", 32, 4096, 14_336, 32, 8, 128, 128_256),
    ModelSpec("llama-3.1-70b", 80, 8192, 28_672, 64, 8, 128, 128_256),
    ModelSpec("llama-3.3-70b", 80, 8192, 28_672, 64, 8, 128, 128_256),
    ModelSpec("smollm2-135m", 30, 576, 1536, 9, 3, 64, 49_152, True),
    ModelSpec("smollm2-360m", 32, 960, 2560, 15, 5, 64, 49_152, True),
    ModelSpec("smollm2-1.7b", 24, 2048, 8192, 32, 32, 64, 49_152, True),
)


def known_model(name: str) -> ModelSpec | None:
    """The known model that a hub id, directory or file name means, such as `Qwen/Qwen3-4B-FP8`; None: no known one."""
    words = set(re.split(r"[/\\_\s-]+", name.lower()))
    found = [spec for spec in KNOWN_MODELS if set(spec.name.split("-")) <= words]
    return found[0] if len(found) == 1 else None
