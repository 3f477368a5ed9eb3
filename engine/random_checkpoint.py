"""Random checkpoints of a given shape in the published layouts: for tests and benchmarks, where weights are not at hand.

python -m quail_spark.engine.random_checkpoint qwen3-4b DIRECTORY [--fp8] [--layers 4] [--seed 0] [--device cuda]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file

from quail_spark.kernels.fp8 import BLOCK, quantise_weight
from quail_spark.optimizer.errors import ModelError

SHARD_BYTES = 2 << 30
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8}
QWEN3 |= {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936, "rms_norm_eps": 1e-6}
QWEN2 |= {"rope_theta": 1e6, "max_position_embeddings": 32768}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "rms_norm_eps": 1e-5}
LLAMA |= {"rope_theta": 5e5, "max_position_embeddings": 131072, "num_key_value_heads": 8}


def _shape(family: dict, hidden: int, intermediate: int, layers: int, heads: int, **more) -> dict:
    sizes = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    return family | sizes | {"num_attention_heads": heads, "hidden_act": "silu", "dtype": "bfloat16"} | more


SHAPES = {
    "qwen3-0.6b": _shape(QWEN3, 1024, 3072, 28, 16, tie_word_embeddings=True),
    "qwen3-1.7b": _shape(QWEN3, 2048, 6144, 28, 16, tie_word_embeddings=True),
    "qwen3-4b": _shape(QWEN3, 2560, 9728, 36, 32, tie_word_embeddings=True),
    "qwen3-8b": _shape(QWEN3, 4096, 12288, 36, 32, tie_word_embeddings=False),
    "qwen2.5-0.5b": _shape(QWEN2, 896, 4864, 24, 14, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2.5-7b": _shape(QWEN2, 3584, 18944, 28, 28, num_key_value_heads=4, tie_word_embeddings=False),
    "llama-3.2-1b": _shape(LLAMA, 2048, 8192, 16, 32, head_dim=64, tie_word_embeddings=True),
    "llama-3.1-8b": _shape(LLAMA, 4096, 14336, 32, 32, tie_word_embeddings=False),
}


def write_random_checkpoint(
    config: dict, directory: Path, *, fp8: bool = False, seed: int = 0, device: str = "cpu"
) -> Path:
    """Write config.json and safetensors shards; weights are normal, scaled so that activations keep their size.

    O and down projections are smaller by √(2 · layers), as initialisations of trained models are (Radford et al. 2019):
    without it rounding grows from layer to layer until answers of two equal computations have little in common.

    `config` as in a checkpoint's config.json (see SHAPES). `fp8`: matrices of the layers in e4m3 with a scale for each
    128 × 128 block, as Qwen3's FP8 checkpoints. Tensors are made on `device`. Raises ModelError for an unknown family.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device).manual_seed(seed)
    shard, size, count, index = {}, 0, 0, {}
    for name, tensor in _tensors(config, fp8, generator):
        shard[name] = tensor.cpu()
        size += tensor.nbytes
        if size > SHARD_BYTES:
            count += 1
            index |= _save(shard, directory, count)
            shard, size = {}, 0
    index |= _save(shard, directory, count + 1)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    quantisation = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    given = config | ({"quantization_config": quantisation | {"fmt": "e4m3"}} if fp8 else {})
    (directory / "config.json").write_text(json.dumps(given, indent=1))
    return directory


def _save(shard: dict[str, torch.Tensor], directory: Path, number: int) -> dict[str, str]:
    name = f"model-{number:05d}.safetensors"
    save_file(shard, directory / name, metadata={"format": "pt"})
    return dict.fromkeys(shard, name)


def _tensors(config: dict, fp8: bool, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    q, kv = heads * dim, config["num_key_value_heads"] * dim
    family, layers = config["model_type"], config["num_hidden_layers"]
    if family not in ("qwen3", "qwen2", "llama"):
        raise ModelError(f"model_type is {family!r}; accepted: qwen3, qwen2, llama")

    def normal(*shape: int, spread: float, middle: float = 0.0) -> torch.Tensor:
        tensor = torch.randn(*shape, generator=generator, device=generator.device)
        return tensor.mul_(spread).add_(middle).bfloat16()

    def matrix(name: str, out: int, into: int) -> Iterator[tuple[str, torch.Tensor]]:
        onto_residual = name.endswith(("o_proj", "down_proj"))
        weight = normal(out, into, spread=(into * (2 * layers if onto_residual else 1)) ** -0.5)
        if not fp8:
            yield f"{name}.weight", weight
            return
        values, scales = quantise_weight(weight, "block")
        yield f"{name}.weight", values
        yield f"{name}.weight_scale_inv", scales

    yield "model.embed_tokens.weight", normal(config["vocab_size"], hidden, spread=1.0)
    for index in range(layers):
        prefix = f"model.layers.{index}"
        for name, out, into in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            yield from matrix(f"{prefix}.self_attn.{name}_proj", out, into)
            if family == "qwen2" and name != "o":
                yield f"{prefix}.self_attn.{name}_proj.bias", normal(out, spread=0.2)
        for name, out, into in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield from matrix(f"{prefix}.mlp.{name}_proj", out, into)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", normal(hidden, spread=0.1, middle=1.0)
        if family == "qwen3":
            for name in "qk":
                yield f"{prefix}.self_attn.{name}_norm.weight", normal(dim, spread=0.1, middle=1.0)
    yield "model.norm.weight", normal(hidden, spread=0.1, middle=1.0)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", normal(config["vocab_size"], hidden, spread=hidden**-0.5)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    config = SHAPES[args.shape] | ({"num_hidden_layers": args.layers} if args.layers else {})
    write_random_checkpoint(config, args.directory, fp8=args.fp8, seed=args.seed, device=args.device)


if __name__ == "__main__":
    main()
