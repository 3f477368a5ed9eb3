"""Shapes of models against published figures and a naive count of weights."""

import random

import pytest

from quail_spark.optimizer.errors import ModelError
from quail_spark.optimizer.model_spec import KNOWN_MODELS, ModelSpec, known_model


def test_the_figures_of_qwen3_4b():
    spec = known_model("Qwen/Qwen3-4B-FP8")
    assert spec.linear_flops == pytest.approx(7.267e9, rel=1e-4)
    assert spec.kv_bytes() == 147_456
    assert spec.kv_bytes("fp8") == 73_728


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3-0.6b", 0.596), ("qwen3-8b", 8.19), ("qwen3-32b", 32.76), ("qwen2.5-0.5b", 0.494), ("qwen2.5-7b", 7.62),
     ("qwen2.5-72b", 72.7), ("llama-3.2-1b", 1.236), ("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.55), ("smollm2-135m", 0.1345)],
)  # fmt: skip
def test_published_parameter_counts(name, billions):
    assert known_model(name).weight_bytes("fp8") == pytest.approx(billions * 1e9, rel=0.005)


def test_weights_are_those_of_the_matrices():
    rng = random.Random(3)
    for _ in range(20):
        kv_heads, layers, hidden, inner = (rng.randint(1, 64) for _ in range(4))
        heads, dim = kv_heads * rng.randint(1, 8), rng.randint(1, 128)
        spec = ModelSpec("m", layers, hidden, inner, heads, kv_heads, dim, 10)
        matrices = [(heads * dim, hidden), (kv_heads * dim, hidden), (kv_heads * dim, hidden), (hidden, heads * dim)]
        matrices += [(inner, hidden), (inner, hidden), (hidden, inner)]
        assert spec.linear_flops == 2 * layers * sum(a * b for a, b in matrices)
        assert spec.kv_bytes("float32") == 4 * layers * 2 * kv_heads * dim


def test_names_on_hubs_and_disks():
    assert known_model("/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf").name == "qwen2.5-0.5b"
    assert known_model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert known_model("Qwen/Qwen3-30B-A3B") is None
    assert known_model("scripted://hash") is None
    assert len({spec.name for spec in KNOWN_MODELS}) == len(KNOWN_MODELS)


def test_from_a_configuration():
    config = {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 100, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50, "tie_word_embeddings": True,
    }  # fmt: skip
    assert ModelSpec.from_config(config, "tiny") == ModelSpec("tiny", 2, 64, 100, 4, 2, 16, 50, True)
    assert (
        ModelSpec.from_config(config | {"head_dim": 32, "num_key_value_heads": None}).kv_bytes() == 2 * 2 * 4 * 32 * 2
    )
    with pytest.raises(ModelError, match="hidden_size in the configuration of tiny is None"):
        ModelSpec.from_config(config | {"hidden_size": None}, "tiny")
    with pytest.raises(ModelError, match="num_experts"):
        ModelSpec.from_config(config | {"num_experts": 8})
    with pytest.raises(ModelError, match="number type is 'int3'"):
        ModelSpec.from_config(config).kv_bytes("int3")
