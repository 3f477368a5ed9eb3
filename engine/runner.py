"""Runs segments through a model and keeps the KV that is asked for."""

from collections.abc import Sequence

import numpy as np
import torch

from quail_spark.optimizer.errors import ConfigError, EngineError

from .batch import Batch, Segment, check_segments, pack, release
from .config import EngineConfig
from .kv import KVNode, PagePool
from .models.decoder import Decoder
from .workers import Workers

__all__ = ["Runner", "Segment"]

LEAST_CONTEXT = 256  # tokens: with less KV than this no document is worth starting


class Runner:
    """One model, its KV pages and the answer tokens. Not thread-safe."""

    def __init__(self, model: Decoder, config: EngineConfig, answer_ids: Sequence[int]):
        """`answer_ids`: token ids whose logits `run` returns, in this order. Raises ConfigError when the KV memory is too small."""
        facts = model.config
        bad = [i for i in answer_ids if not 0 <= i < facts.vocab]
        if bad or not len(answer_ids):
            raise EngineError(
                f"answer token ids are {list(answer_ids)}; accepted: one or more from 0 to {facts.vocab - 1}"
            )
        self.model, self.config, self.answer_ids = model, config, tuple(answer_ids)
        threads = (config.threads or _all_cores()) if config.device == "cpu" else 1
        torch.set_num_threads(threads)
        self.workers = Workers(threads)
        self.token_bytes = facts.kv_token_bytes(model.dtype.itemsize)
        pages, self.max_context = plan_pages(config, self.token_bytes, facts.max_context)
        self.page_pool = PagePool(
            facts.layers, facts.kv_heads, facts.head_dim, pages, config.page_size, model.dtype, model.device
        )
        self._head_rows = model.head(self.answer_ids)

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> tuple[np.ndarray, list[KVNode | None]]:
        """One forward pass over all segments.

        Returns logits float32 [answering segments, answer ids] in the order given, and for each segment its new node
        (one reference, the caller's) or None. Raises OutOfPagesError, RowError (longer than the context) or EngineError;
        then nothing stays kept.
        """
        check_segments(segments, self.max_context, self.model.config.vocab)
        batch = pack(segments, self.page_pool, self.model.device)
        try:
            return self._logits(batch), batch.nodes
        except BaseException:
            release(batch.nodes)
            raise

    def _logits(self, batch: Batch) -> np.ndarray:
        logits = np.empty((len(batch.answers), len(self.answer_ids)), dtype=np.float32)
        if len(batch.tokens):
            logits[batch.answers] = (
                self.model.forward(batch, self.page_pool, self._head_rows, self.workers).cpu().numpy()
            )
        return logits

    def describe(self) -> dict:
        """Model, number type and memory plan; bytes and tokens as named."""
        facts, pool = self.model.config, self.page_pool
        return {
            "family": facts.family,
            "layers": facts.layers,
            "hidden": facts.hidden,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "max_context": self.max_context,
            "model_context": facts.max_context,
            "kv_token_bytes": self.token_bytes,
            "kv_page_tokens": pool.page_size,
            "kv_pages": pool.total_pages,
            "kv_free_pages": pool.free_pages,
            "kv_bytes": pool.total_pages * pool.page_size * self.token_bytes,
        }


def plan_pages(config: EngineConfig, token_bytes: int, model_context: int) -> tuple[int, int]:
    """Number of KV pages and the longest prompt in tokens.

    An asked-for context must fit into the KV memory; the model's own is cut to what fits. Raises ConfigError.
    """
    if config.max_context > model_context:
        raise ConfigError(
            f"spark.quail.engine.maxContext is {config.max_context} tokens; the model's limit is {model_context}"
        )
    pages = config.kv_bytes // (config.page_size * token_bytes)
    fits = pages * config.page_size
    least = config.max_context or min(model_context, LEAST_CONTEXT)
    if fits < least:
        raise ConfigError(
            f"spark.quail.engine.kvMemory is {config.kv_bytes} bytes, room for {fits} tokens at {token_bytes} bytes each; "
            f"one prompt of {least} tokens needs {-(-least // config.page_size) * config.page_size * token_bytes} bytes"
        )
    return pages, config.max_context or min(model_context, fits)


def _all_cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
