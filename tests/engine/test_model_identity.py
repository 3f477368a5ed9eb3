"""Whose answers are whose: the identity names content, not place."""

import json
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from quail_spark.engine.checkpoint import read_facts
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.model_evaluator import ModelEvaluator
from quail_spark.engine.model_identity import model_identity
from quail_spark.engine.readout import Readout
from quail_spark.optimizer.plan import OperatorSpec

sys.path.insert(0, str(Path(__file__).parent))
import checkpoints
from evaluators import predicate

READOUT = Readout((1, 2), 1)


@pytest.fixture
def llama(tmp_path):
    checkpoints.write("llama", tmp_path / "model")
    return tmp_path / "model"


def identity(directory, dtype=torch.bfloat16, fp8=None, readout=READOUT, kv="auto"):
    return model_identity(directory, read_facts(directory), dtype, fp8, readout, kv)


def test_a_copy_elsewhere_or_in_other_shards_is_the_same_model(llama, tmp_path):
    copy = shutil.copytree(llama, tmp_path / "elsewhere")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": "5.0.0", "_name_or_path": "x"}))
    assert identity(copy) == identity(llama)
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    for shard in range(3):
        part = {name: tensors[name] for name in names[shard::3]}
        save_file(part, copy / f"model-{shard}.safetensors", {"format": "pt", "shard": str(shard)})
    assert identity(copy) == identity(llama)


def test_trained_weights_are_another_model(llama):
    before = identity(llama)
    path = llama / "model.safetensors"
    tensors = load_file(path)
    rng = random.Random(5)
    for name in rng.sample(sorted(tensors), 6):
        save_file({**tensors, name: tensors[name] * 1.01}, path, {"format": "pt"})
        assert identity(llama) != before, name
    save_file(tensors, path, {"format": "pt"})
    assert identity(llama) == before


def test_large_tensors_are_looked_at_in_each_quarter(tmp_path, llama):
    path, rows = llama / "model.safetensors", 1 << 15
    large = torch.arange(rows, dtype=torch.float32)
    save_file({**load_file(path), "large": large}, path, {"format": "pt"})
    before = identity(llama)
    for quarter in range(4):
        changed = large.clone()
        changed[rows * quarter // 4 : rows * (quarter + 1) // 4] += 1
        save_file({**load_file(path), "large": changed}, path, {"format": "pt"})
        assert identity(llama) != before


def test_configuration_number_type_scales_and_answer_tokens_count(llama):
    seen = {
        identity(llama),
        identity(llama, dtype=torch.float32),
        identity(llama, fp8="row"),
        identity(llama, fp8="block"),
        identity(llama, kv="fp8"),
    }
    seen |= {identity(llama, readout=Readout((1, 3), 1)), identity(llama, readout=Readout((1, 2), 2))}
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 2e-5}))
    assert len(seen | {identity(llama)}) == 8


def test_a_copy_of_a_model_finds_the_answers_of_the_first(tiny_checkpoint, tmp_path, monkeypatch):
    """Through the loader, with prompts of two predicates and of pairs; a trained copy computes its own."""
    monkeypatch.setattr("quail_spark.engine.answer_store.LEAST_REFRESH", 0.0)
    rng = random.Random(1)
    rows = [[" ".join(rng.choices(["film", "refund", "liked", "<|im_end|>", "naïve"], k=5))] for _ in range(12)]
    asks = OperatorSpec("asks", "filter", (predicate("{0} asks for a refund", 0), predicate("{0} is short", 0)))
    match = OperatorSpec("match", "pairs", (predicate("{0} suits {1}", 0, 0, partner=(1,)),))

    def run(directory):
        config = EngineConfig(
            str(directory), dtype="float32", threads=1, kv_bytes=64 << 20, answer_store=str(tmp_path / "store")
        )
        evaluator = ModelEvaluator.load(config)
        answers = [evaluator.open(asks).rows(rows), evaluator.open(match).pairs(rows[:2], [0, 1], [rows[2:6]] * 2)]
        evaluator.close()
        return answers

    first = run(tiny_checkpoint)
    copy = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    again = run(copy)
    for before, after in zip(first, again, strict=True):
        assert before.counts.fresh_tokens > 0 and before.counts.evaluations > 0
        assert (after.counts.fresh_tokens, after.counts.evaluations) == (0, 0)
        assert after.counts.remembered == sum(after.counts.asked)
        np.testing.assert_array_equal(after.codes, before.codes)
        np.testing.assert_array_equal(after.margins, before.margins)
    tensors = load_file(copy / "model.safetensors")
    save_file({name: t * 1.01 for name, t in tensors.items()}, copy / "model.safetensors", {"format": "pt"})
    assert all(answers.counts.evaluations > 0 for answers in run(copy))
