"""The GPU's decoder against the CPU's in float32 on the same weights, on the card or in Triton's interpreter."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels"))
from triton_device import DEVICE, HALF, ON_CARD

from quail_spark.engine.checkpoint import load_decoder
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.memory_plan import MemoryPlan
from quail_spark.engine.random_checkpoint import write_random_checkpoint
from quail_spark.engine.runner import Runner, Segment
from quail_spark.engine.warm_up import QUESTION, warm_up
from quail_spark.kernels.fp8 import FP8
from quail_spark.optimizer.errors import ConfigError, ModelError

IDS = (3, 77, 150, 210)
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SMALL |= {"vocab_size": 211, "num_hidden_layers": 3, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6}
SMALL |= {"hidden_act": "silu", "dtype": "bfloat16", "rope_theta": 1e4, "tie_word_embeddings": True}
WIDE = SMALL | {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 128}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
SHAPES = {
    "qwen3": SMALL | QWEN3 | {"head_dim": 32},
    "qwen2": SMALL | QWEN2,
    "llama": SMALL | LLAMA | {"head_dim": 64, "tie_word_embeddings": False},
}
if ON_CARD:
    SHAPES |= {"wide qwen3": WIDE | QWEN3, "wide qwen2": WIDE | QWEN2 | {"num_attention_heads": 8}}
# Largest logit difference by the spread of logits: rounding to half precision, and quantised activations besides.
PLAIN, QUANTISED = 0.06, 0.35


def runner(directory, device: str, dtype: torch.dtype, fp8: str | None = None, kv: str = "auto") -> Runner:
    model = load_decoder(directory, torch.device(device), dtype, fp8, triton=dtype != torch.float32)
    config = EngineConfig(
        str(directory), device="cpu", kv_bytes=64 << 20, page_size=64, token_budget=2048, threads=1, kv=kv
    )
    return Runner(model, config, IDS)


def both(directory, fp8: str | None = None) -> tuple[Runner, Runner]:
    return runner(directory, DEVICE, HALF, fp8), runner(directory, "cpu", torch.float32)


def text(rng, count: int) -> np.ndarray:
    return rng.integers(0, 211, count).astype(np.int32)


def conversation(run: Runner, rng, longest: int) -> np.ndarray:
    """Logits over all that a runner does: alone, kept and rewound, behind short and long prefixes, in chains."""
    rows = [run.run([Segment(text(rng, n)) for n in (1, 40, 2, longest, 17)])[0]]
    logits, nodes = run.run([Segment(text(rng, n + 3), keep=n) for n in (37, longest, 64)])
    rows.append(logits)
    partners = [Segment(text(rng, int(n)), nodes[i]) for i in range(3) for n in rng.integers(1, 30, 5)]
    logits, _ = run.run([*partners, Segment(text(rng, 21))])
    rows.append(logits)
    logits, deeper = run.run([Segment(text(rng, 70), nodes[1], keep=66), Segment(text(rng, 9), nodes[0], keep=9)])
    rows.append(logits)
    logits, silent = run.run([Segment(text(rng, 5), deeper[0], keep=5, answer=False), Segment(text(rng, 4), deeper[1])])
    rows.append(logits)
    rows.append(run.run([Segment(text(rng, n), silent[0]) for n in (1, 2, 33)])[0])
    for node in [*nodes, *deeper, silent[0]]:
        node.release()
    assert run.page_pool.free_pages == run.page_pool.total_pages
    return np.concatenate(rows)


def check(ours: Runner, theirs: Runner, tolerance: float, longest: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    got, want = (conversation(r, np.random.default_rng(seed), longest) for r in (ours, theirs))
    assert np.isfinite(got).all(), seed
    difference = np.abs(got - want).max() / want.std()
    assert difference < tolerance, (difference, seed)


@pytest.mark.parametrize("kind", SHAPES)
def test_same_logits(kind, tmp_path):
    write_random_checkpoint(SHAPES[kind], tmp_path, seed=1)
    check(*both(tmp_path), PLAIN, 1200 if ON_CARD else 90)


@pytest.mark.parametrize("kind", SHAPES)
def test_same_logits_from_kv_pages_in_fp8(kind, tmp_path):
    write_random_checkpoint(SHAPES[kind], tmp_path, seed=4)
    ours, theirs = runner(tmp_path, DEVICE, HALF, kv="fp8"), runner(tmp_path, "cpu", torch.float32)
    check(ours, theirs, 2 * PLAIN, 1200 if ON_CARD else 90)
    facts = SHAPES[kind]
    heads, dim = facts["num_key_value_heads"], facts.get("head_dim", 64 // facts["num_attention_heads"])
    assert ours.describe()["kv_dtype"] == "float8_e4m3fn"
    assert ours.token_bytes == 2 * facts["num_hidden_layers"] * heads * (dim + 4)


def test_same_logits_with_scores_in_fp8(tmp_path):
    write_random_checkpoint(SHAPES["qwen3"], tmp_path, seed=5)
    ours, theirs = runner(tmp_path, DEVICE, HALF, kv="fp8-keys"), runner(tmp_path, "cpu", torch.float32)
    assert ours.page_pool.keys.dtype == FP8 and ours.page_pool.values.dtype == HALF
    assert ours.describe()["kv_dtype"].endswith(", keys float8_e4m3fn") and ours.token_bytes == 3 * 2 * 32 * 3
    check(ours, theirs, 2 * PLAIN, 1200 if ON_CARD else 90)


def test_keys_in_fp8_take_head_norms(tmp_path):
    write_random_checkpoint(SHAPES["llama"], tmp_path, seed=6)
    with pytest.raises(ConfigError, match=r"is 'fp8-keys'; accepted for this model \(Llama\) on cpu: auto, fp8 \("):
        runner(tmp_path, "cpu", HALF, kv="fp8-keys")
    with pytest.raises(ConfigError, match=r"is 'fp8-keys'; accepted for this model \(Llama\) on cpu: auto \("):
        runner(tmp_path, "cpu", torch.float32, kv="fp8-keys")


@pytest.mark.skipif(not ON_CARD, reason="FP8 products need a card")
@pytest.mark.parametrize("fp8", ["row", "block", None])
@pytest.mark.parametrize("kind", ["wide qwen3", "wide qwen2"])
def test_same_logits_from_an_fp8_checkpoint(kind, fp8, tmp_path):
    write_random_checkpoint(SHAPES.get(kind, SMALL), tmp_path, fp8=True, seed=2)
    check(*both(tmp_path, fp8), QUANTISED if fp8 else PLAIN, 900)


def test_an_fp8_checkpoint_without_fp8_products(tmp_path):
    write_random_checkpoint(WIDE | QWEN3 | {"num_hidden_layers": 2}, tmp_path, fp8=True, seed=3)
    check(*both(tmp_path), PLAIN, 60)


def test_heads_that_the_kernels_do_not_serve_are_refused(tmp_path):
    write_random_checkpoint(SMALL | QWEN3 | {"head_dim": 8, "num_hidden_layers": 1}, tmp_path)
    with pytest.raises(ModelError, match="4 attention heads over 2 of 8 dimensions are not computed on a GPU"):
        runner(tmp_path, DEVICE, HALF)
    runner(tmp_path, "cpu", torch.float32)


@pytest.mark.parametrize("size", [0.3, 2.5])
def test_large_head_norms(size, tmp_path):
    """Scores that need no running maximum, and scores that do: in float16 far earlier, for attention's weights are cast to it."""
    write_random_checkpoint(SHAPES["qwen3"], tmp_path, seed=9)
    for path in tmp_path.glob("*.safetensors"):
        tensors = load_file(path)
        norms = {
            name: weight * size for name, weight in tensors.items() if "_norm.weight" in name and "self_attn" in name
        }
        save_file(tensors | norms, path, {"format": "pt"})
    for dtype in {HALF, torch.float16}:
        check(runner(tmp_path, DEVICE, dtype), runner(tmp_path, "cpu", torch.float32), PLAIN, 90)


@pytest.mark.skipif(not ON_CARD, reason="the interpreter takes long, and compiles nothing")
@pytest.mark.parametrize("pages,context,budget", [(1000, 2048, 256), (16, 1024, 2048), (1, 20, 32), (2, 64, 1024)])
def test_warm_up_within_the_plan(pages, context, budget, tmp_path, monkeypatch):
    write_random_checkpoint(SHAPES["qwen3"] | {"num_hidden_layers": 2}, tmp_path)
    run = runner(tmp_path, DEVICE, HALF)
    run.plan, run.max_context = MemoryPlan(budget, 64, pages, context), context
    run.page_pool = run._make_pool(HALF, HALF)
    launch, sizes = run.launch, []

    def noted(segments):
        sizes.append(sum(len(segment.tokens) for segment in segments))
        return launch(segments)

    monkeypatch.setattr(run, "launch", noted)
    warm_up(run)
    assert run.page_pool.free_pages == pages
    assert max(sizes) <= max(budget, 6 * QUESTION) and budget // 2 < sizes[-1] <= budget
