"""Engines for the suite: a model's, or one that computes nothing but plans, packs, keeps and counts as if it did.

Weights may be random, so a gate decides the answers: a fixed function of question and texts that is TRUE as often as the
query says. The model computes all the same.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from quail_spark.engine.batch import Segment
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.memory import AnswerMemory
from quail_spark.engine.model_evaluator import ModelAnswerer, ModelEvaluator
from quail_spark.engine.readout import Readout
from quail_spark.engine.rendering import PromptQuestion, Renderer
from quail_spark.engine.runner import Pass, Runner
from quail_spark.engine.scripted import scripted_answer
from quail_spark.engine.session import OperatorSession, Request
from quail_spark.engine.tokens import Tokens
from quail_spark.optimizer.plan import OperatorSpec
from quail_spark.optimizer.statistics import PassRates
from quail_spark.optimizer.work import Work

READOUT = Readout((11, 22), 1)  # any two tokens: the gate decides
KV_TOKENS = 700_000  # of Qwen3-4B in bfloat16 on an H200, beside weights and activations
PAGE, BUDGET, CONTEXT = 64, 32_768, 40_960
HEATING = 2.0  # seconds: a cold card is faster than one at work


class ByteTokens:
    """Four bytes of text are a token, as the cost model has it: for models without a vocabulary of their own."""

    chat = None

    def __init__(self, vocabulary: int):
        self._vocabulary = vocabulary

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids (int32) of each text."""
        return [self.encode_control(text) for text in texts]

    def encode_control(self, text: str) -> np.ndarray:
        raw = text.encode()
        return (np.frombuffer(raw + bytes(-len(raw) % 4), "<u4") % self._vocabulary).astype(np.int32)

    def beginning(self) -> np.ndarray:
        return np.empty(0, np.int32)


@dataclass
class _NoFacts:
    """The smallest KV that a pool can have: a byte's worth of memory stands for a token's."""

    family: str = "none"
    layers: int = 1
    hidden: int = 1
    kv_heads: int = 1
    head_dim: int = 1
    vocab: int = 2**31 - 1
    max_context: int = CONTEXT

    def kv_token_bytes(self, key_bytes: int, value_bytes: int, scale_bytes: int = 0) -> int:
        return key_bytes + value_bytes + 2 * scale_bytes


class NoModel:
    """Takes the place of a decoder: every answer is 0, at once."""

    config, device, dtype, fp8, row_bytes = _NoFacts(), torch.device("cpu"), torch.bfloat16, None, 0
    serves_fp8_kv = serves_fp8_keys = False

    def head(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.zeros(len(ids))

    def forward(self, batch, pool, head_rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(batch.answers), len(head_rows))


class CountingRunner(Runner):
    """A runner that counts the work of its passes the way `optimizer.work` does."""

    work = Work()

    def launch(self, segments: Sequence[Segment]) -> Pass:
        new = np.array([len(s.tokens) for s in segments], float)
        behind = np.array([s.parent.length if s.parent else 0 for s in segments], float)
        parents = {id(s.parent): s.parent.length for s in segments if s.parent}
        self.work += Work(
            fresh=float(new.sum()),
            own_pairs=float((new * (new + 1) / 2).sum()),
            kept_pairs=float((new * behind).sum()),
            kv_written=float(sum(s.keep for s in segments)),
            kv_read=float(sum(parents.values())),
            answers=float(sum(s.answer for s in segments)),
        )
        return super().launch(segments)


def model_engine(directory: Path, device: str, fp8: str = "auto") -> ModelEvaluator:
    """Over a checkpoint. Without a tokenizer in its directory four bytes are a token."""
    config = EngineConfig(str(directory), device=device, fp8=fp8)
    model = load_model(str(directory), device=device, fp8=fp8)
    known = (directory / "tokenizer.json").exists()
    tokens = Tokens.load(directory) if known else ByteTokens(model.config.vocab)
    readout = Readout.of(tokens) if known else READOUT
    runner = CountingRunner(model, config, readout.ids)
    model.warm_up(runner)
    if device != "cpu":
        _heat(runner)
    runner.work = Work()
    return ModelEvaluator(config, tokens, readout, runner, str(directory))


def _heat(runner: Runner) -> None:
    end = time.perf_counter() + HEATING
    while time.perf_counter() < end:
        runner.run([Segment(np.arange(512, dtype=np.int32)) for _ in range(16)])


def counting_engine(tokenizer: Path | None = None) -> ModelEvaluator:
    """Without a model, with the KV pages and passes that Qwen3-4B has on an H200."""
    config = EngineConfig("none", kv_bytes=KV_TOKENS * 4, page_size=PAGE, token_budget=BUDGET, threads=1)
    tokens = Tokens.load(tokenizer) if tokenizer else ByteTokens(_NoFacts.vocab)
    return ModelEvaluator(config, tokens, READOUT, CountingRunner(NoModel(), config, READOUT.ids), "none")


class Gate:
    """Opens sessions whose answers are `scripted_answer`s, TRUE at the rate of each template."""

    def __init__(self, evaluator: ModelEvaluator, rates: Mapping[str, float], in_order: bool = False):
        """Starts with no answers remembered and no KV kept. `in_order`: questions are asked in the order of the plan, whatever they cost."""
        self._evaluator, self._rates = evaluator, rates
        self.true: dict[bytes, bool] = {}
        evaluator.close()
        shared = evaluator.shared
        shared.memory = AnswerMemory(shared.memory.capacity)
        shared.pass_rates = _InOrder() if in_order else PassRates()
        evaluator.runner.work = Work()

    def open(self, spec: OperatorSpec) -> OperatorSession:
        """A session of one operator."""
        e = self._evaluator
        renderer = Renderer(e.tokens, e.cache, spec, e.identity, e.runner.max_context)

        def questions(requests: list[Request]) -> list[PromptQuestion]:
            rendered = renderer.questions(requests)
            for (p, texts), question in zip(requests, rendered, strict=True):
                template = spec.predicates[p].template
                self.true[question.key] = scripted_answer(template, texts, self._rates[template])
            return rendered

        return OperatorSession(spec, _Gated(e, spec, questions, gate=self), e.shared)


class _Gated(ModelAnswerer):
    def __init__(self, *arguments, gate: Gate):
        super().__init__(*arguments)
        self._gate = gate

    def launch(self, now, *rest):
        margins = super().launch(now, *rest)

        def decided() -> np.ndarray:
            margins()
            return np.array([1.0 if self._gate.true[question.key] else -1.0 for question in now], np.float32)

        return decided


class _InOrder(PassRates):
    """Pass rates by which no order but the plan's is cheap."""

    def estimate(self, spec: OperatorSpec) -> list[float]:
        return [1 - 0.001**place for place in range(len(spec.predicates))]
