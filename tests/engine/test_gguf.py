"""Conversion of GGUF files, on a tiny one written here."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from quail_spark.engine import gguf as conversion
from quail_spark.engine.cache import cache_dir
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model, resolve_checkpoint
from quail_spark.engine.runner import Runner, Segment
from quail_spark.optimizer.errors import ModelError

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints

gguf = pytest.importorskip("gguf")
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 32, 4, 2, 64, 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUAIL_SPARK_CACHE", str(tmp_path / "cache"))


def alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def write_gguf(path: Path, seed: int = 0) -> Path:
    """A Qwen2 of two layers with float32 tensors that bfloat16 holds exactly, and a byte-level vocabulary."""
    rng = np.random.default_rng(seed)
    tokens = [*alphabet(), "TR", "UE", "TRUE", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["T R", "U E", "TR UE"])
    writer.add_eos_token_id(len(tokens) - 1)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"token_embd.weight": (len(tokens), HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes["output.weight"] = (len(tokens), HIDDEN)
    for i in range(LAYERS):
        for name, out, into in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", kv, HIDDEN),
            ("attn_v", kv, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ):
            shapes[f"blk.{i}.{name}.weight"] = (out, into)
            if name in ("attn_q", "attn_k", "attn_v"):
                shapes[f"blk.{i}.{name}.bias"] = (out,)
        shapes |= {f"blk.{i}.{name}.weight": (HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        value = torch.from_numpy(rng.normal(1.0 if "norm" in name else 0.0, 0.3, shape)).bfloat16().float()
        writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_converted_model_is_the_file(tmp_path, capfd):
    """The converted checkpoint computes what transformers computes from the GGUF file itself."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = write_gguf(tmp_path / "tiny.gguf")
    directory = resolve_checkpoint(str(path))
    assert directory.parent == cache_dir() / "converted" and "converting tiny.gguf" in capfd.readouterr().err
    runner = Runner(
        load_model(str(path), device="cpu", dtype="float32"),
        EngineConfig(model=str(path), threads=1, kv_bytes=1 << 20),
        (0, 100, 258),
    )
    tokens = checkpoints.text(np.random.default_rng(), 50)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    logits, _ = runner.run([Segment(tokens)])
    np.testing.assert_allclose(logits[0], checkpoints.reference(theirs, tokens, (0, 100, 258)), rtol=0, atol=1e-4)
    assert AutoTokenizer.from_pretrained(directory).encode("TRUE<|im_end|>") == [258, 260]
    assert runner.model.config.max_context == 128


def test_converted_once(tmp_path, monkeypatch):
    path, calls = write_gguf(tmp_path / "tiny.gguf"), []
    convert = conversion._convert
    monkeypatch.setattr(conversion, "_convert", lambda *a: (calls.append(1), convert(*a)))
    found = []
    threads = [threading.Thread(target=lambda: found.append(resolve_checkpoint(str(path)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(set(found)) == 1 and len(found) == 4
    assert sorted(p.name for p in found[0].parent.iterdir()) == [found[0].name, found[0].name + ".lock"]
    write_gguf(path, seed=1)  # another file in its place is another model
    assert resolve_checkpoint(str(path)) != found[0] and len(calls) == 2


def test_what_a_killed_conversion_left_is_removed(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf")
    left = cache_dir() / "converted" / f".{conversion.cache_key(path)}-left"
    left.mkdir(parents=True)
    resolve_checkpoint(str(path))
    assert not left.exists()


def test_a_failed_conversion_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match=r"broken.gguf can't be read as a GGUF model"):
        resolve_checkpoint(str(path))
    assert [p.suffix for p in (cache_dir() / "converted").iterdir()] == [".lock"]
    good = write_gguf(tmp_path / "good.gguf")
    monkeypatch.setattr(conversion, "_read", lambda path: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        resolve_checkpoint(str(good))
    assert {p.suffix for p in (cache_dir() / "converted").iterdir()} == {".lock"}


def test_cache_dir(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("QUAIL_SPARK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/quail-spark")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "quail-spark"
