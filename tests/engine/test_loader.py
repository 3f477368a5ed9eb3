"""Finding, checking and reading checkpoints."""

import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, Qwen2ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from quail_spark.engine.checkpoint import read_facts
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model, resolve_checkpoint, resolve_dtype
from quail_spark.engine.models.rope import FREQUENCIES, read_rope
from quail_spark.engine.random_checkpoint import write_random_checkpoint
from quail_spark.engine.runner import Runner, Segment
from quail_spark.optimizer.errors import ConfigError, ModelError

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints

IDS = (1, 2, 3)


@pytest.fixture
def qwen2(tmp_path):
    checkpoints.write("qwen2", tmp_path / "model")
    return tmp_path / "model"


def change(directory: Path, **changes) -> Path:
    """Rewrite config.json; a value None removes the key."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return directory


def change_tensors(directory: Path, change_it) -> Path:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change_it(tensors)
    save_file(tensors, path, {"format": "pt"})
    return directory


def logits(directory, tokens, dtype="float32"):
    model = load_model(str(directory), device="cpu", dtype=dtype)
    return Runner(model, EngineConfig(model=str(directory), threads=1, kv_bytes=8 << 20), IDS).run([Segment(tokens)])[
        0
    ][0]


def test_facts(qwen2):
    facts = load_model(str(qwen2), device="cpu", dtype="float32").config
    assert (facts.layers, facts.hidden, facts.heads, facts.kv_heads, facts.head_dim) == (3, 48, 6, 2, 8)
    assert (facts.vocab, facts.max_context, facts.tied, facts.family) == (checkpoints.VOCAB, 512, True, "Qwen2")
    assert facts.kv_token_bytes(2, 2) == 2 * 3 * 2 * 8 * 2


def test_sharded_checkpoint(tmp_path):
    model = checkpoints.write("llama", tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    tokens = checkpoints.text(np.random.default_rng(), 20)
    np.testing.assert_array_equal(logits(tmp_path / "shards", tokens), logits(tmp_path / "whole", tokens))


def test_older_names_of_rope_settings(tmp_path):
    """Checkpoints on the hub say rope_theta and rope_scaling, some with `type`."""
    model = checkpoints.write("llama3", tmp_path)
    tokens = checkpoints.text(np.random.default_rng(), 200)
    scaling = {k: v for k, v in checkpoints.LLAMA3.items() if k not in ("rope_type", "rope_theta")}
    change(tmp_path, rope_parameters=None, rope_theta=10000.0, rope_scaling={"type": "llama3", **scaling})
    np.testing.assert_allclose(logits(tmp_path, tokens), checkpoints.reference(model, tokens, IDS), atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near(tmp_path, dtype):
    model = checkpoints.write("qwen3", tmp_path)
    tokens = checkpoints.text(np.random.default_rng(), 60)
    want = checkpoints.reference(model, tokens, IDS)
    np.testing.assert_allclose(logits(tmp_path, tokens, dtype), want, atol=0.05 * np.abs(want).max() + 0.5)


def test_dtype_names():
    cpu = torch.device("cpu")
    assert resolve_dtype("float32", cpu) is torch.float32 and resolve_dtype(torch.float16, cpu) is torch.float16
    assert resolve_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    with pytest.raises(ConfigError, match="accepted: auto, float32, bfloat16, float16"):
        resolve_dtype("int8", cpu)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported; accepted: LlamaFor"),
        ({"architectures": None}, "architecture 'qwen2' is not supported"),
        ({"is_causal": False}, "is_causal is false"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": None, "rope_theta": 1e4}}, "factor is None; accepted: a number"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "'dynamic' is not supported; accepted: default"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported; accepted: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq, .*\); accepted: fp8 with blocks \[128, 128\]"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, r"fp8, blocks \[64, 64\]"),
        ({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}},
         "activations static"),
        ({"hidden_size": 60}, "has shape .*; the configuration says"),
        ({"tie_word_embeddings": False}, "has no tensor 'lm_head.weight'"),
        ({"num_hidden_layers": 4, "layer_types": None}, r"has no tensor 'model.layers.3.self_attn"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refused_configurations(qwen2, changes, message):
    with pytest.raises(ModelError, match=message):
        load_model(str(change(qwen2, **changes)), device="cpu", dtype="float32")


def test_a_head_of_its_own_beside_a_tied_configuration(qwen2):
    """As a fine-tuned head may be saved; transformers does not tie then."""

    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()

    change_tensors(qwen2, add_head)
    tokens = checkpoints.text(np.random.default_rng(), 30)
    model = Qwen2ForCausalLM.from_pretrained(qwen2, dtype=torch.float32).eval()
    np.testing.assert_allclose(logits(qwen2, tokens), checkpoints.reference(model, tokens, IDS), atol=1e-4)


def test_refused_files(qwen2, tmp_path):
    (qwen2 / "config.json").rename(tmp_path / "config.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(str(qwen2))
    (tmp_path / "config.json").rename(qwen2 / "config.json")
    weights = qwen2 / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"model.safetensors is not a whole safetensors file"):
        load_model(str(qwen2))
    weights.unlink()
    with pytest.raises(ModelError, match=r"has no \*.safetensors file"):
        load_model(str(qwen2))
    (qwen2 / "config.json").write_text("{not json")
    with pytest.raises(ModelError, match=r"config.json is not JSON"):
        load_model(str(qwen2))


def test_block_scaled_fp8_gives_the_dequantised_model(tmp_path):
    config = {"hidden_size": 192, "intermediate_size": 320, "num_attention_heads": 4, "num_key_value_heads": 2}
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64, "hidden_act": "silu"}
    config |= {"vocab_size": 211, "num_hidden_layers": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6}
    write_random_checkpoint(config | {"tie_word_embeddings": False, "rope_theta": 1e4}, tmp_path / "fp8", fp8=True)
    shutil.copytree(tmp_path / "fp8", plain := tmp_path / "plain")
    change(plain, quantization_config=None)
    (weights,) = plain.glob("*.safetensors")
    tensors, found = load_file(weights), 0
    for name in [name for name in tensors if name.endswith("_scale_inv")]:
        weight = tensors[name.removesuffix("_scale_inv")].float()
        scales = tensors.pop(name).repeat_interleave(128, 0).repeat_interleave(128, 1)
        tensors[name.removesuffix("_scale_inv")] = weight * scales[: len(weight), : weight.shape[1]]
        found += 1
    assert found == 2 * 7
    name = "model.layers.0.mlp.down_proj.weight_scale_inv"
    save_file(tensors, weights, metadata={"format": "pt"})
    tokens = checkpoints.text(np.random.default_rng(), 60)
    got, want = (logits(tmp_path / name, tokens) for name in ("fp8", "plain"))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    (weights,) = (tmp_path / "fp8").glob("*.safetensors")
    save_file(load_file(weights) | {name: torch.ones(1, 2)}, weights, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"_scale_inv' has shape \(1, 2\); accepted: \(2, 3\)"):
        load_model(str(tmp_path / "fp8"))


def test_quantised_tensors_are_refused(qwen2):
    name = "model.layers.1.mlp.up_proj.weight"
    change_tensors(qwen2, lambda t: t.update({name: t[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(ModelError, match=rf"'{name}' is F8_E4M3; accepted: F32, BF16, F16"):
        load_model(str(qwen2))


def test_no_code_of_a_checkpoint_is_run(qwen2, tmp_path):
    trace = tmp_path / "ran"
    (qwen2 / "own.py").write_text(f"open({str(trace)!r}, 'w')\n")
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    load_model(str(change(qwen2, auto_map=auto)))
    with pytest.raises(ModelError):
        load_model(str(change(qwen2, auto_map=auto, model_type="own")))
    assert not trace.exists()


def test_sliding_window_bounds_the_context(tmp_path):
    """Up to the window's length a sliding layer is a full one; beyond it prompts are refused by the shorter context."""
    model = checkpoints.write("qwen2", tmp_path)
    change(tmp_path, use_sliding_window=True, sliding_window=40, max_window_layers=1, layer_types=None)
    assert read_facts(tmp_path).max_context == 40
    tokens = checkpoints.text(np.random.default_rng(), 40)
    np.testing.assert_allclose(logits(tmp_path, tokens), checkpoints.reference(model, tokens, IDS), atol=1e-4)
    change(tmp_path, use_sliding_window=False, layer_types=None)
    assert read_facts(tmp_path).max_context == 512


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are CUDA devices: test_on_card.py")
def test_devices_that_are_not_there_are_refused(qwen2):
    with pytest.raises(ConfigError, match="device is 'cuda:0'; this machine has 0 CUDA devices"):
        load_model(str(qwen2), device="cuda:0")


def test_resolve_local(qwen2, tmp_path):
    assert resolve_checkpoint(str(qwen2)) == qwen2
    (tmp_path / "weights.bin").write_bytes(b"x")
    for name, message in (
        (tmp_path / "absent", "the directory '.*absent' does not exist"),
        (tmp_path / "absent.gguf", "the GGUF file '.*absent.gguf' does not exist"),
        (tmp_path / "weights.bin", "is a file; accepted: a directory of safetensors, a GGUF file"),
    ):
        with pytest.raises(ModelError, match=message):
            resolve_checkpoint(str(name))


def test_resolve_hub(qwen2, monkeypatch):
    asked = {}

    def snapshot(name, allow_patterns):
        asked.update(name=name, patterns=allow_patterns)
        return str(qwen2)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert resolve_checkpoint("someone/some-model") == qwen2 and asked["name"] == "someone/some-model"
    for unwanted in ("modeling.py", "tokenizer.py", "vocab.py", "pytorch_model.bin", "model.gguf", "README.md"):
        assert not any(fnmatch(unwanted, pattern) for pattern in asked["patterns"])

    def offline(name, allow_patterns):
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ModelError, match=r"'someone/some-model' is neither a local path .*ConnectionError: no route to host\)$"
    ):
        resolve_checkpoint("someone/some-model")


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", **{k: v for k, v in checkpoints.LLAMA3.items() if k != "rope_type"}},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "truncate": False, "beta_fast": 16},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096, "attention_factor": 1.3},
    ],
    ids=lambda p: p["rope_type"],
)  # fmt: skip
@pytest.mark.parametrize("dim", [64, 128])
def test_rope_frequencies(parameters, dim):
    hf = LlamaConfig(head_dim=dim, rope_parameters={"rope_theta": 500000.0, **parameters}, max_position_embeddings=8192)
    rope = read_rope(hf, "Llama")
    want, magnitude = ROPE_INIT_FUNCTIONS[rope.kind](hf, torch.device("cpu"))
    got, got_magnitude = FREQUENCIES[rope.kind](rope, dim)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert got_magnitude == pytest.approx(magnitude)
