"""Runs segments through a model and keeps the KV that is asked for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quail_spark.kernels.fp8 import FP8
from quail_spark.kernels.launching import current
from quail_spark.optimizer.errors import ConfigError, EngineError, OutOfMemoryError

from .batch import Batch, Segment, check_segments, pack, release
from .config import EngineConfig
from .kv import KVNode, PagePool
from .memory_plan import plan_memory
from .models.decoder import Decoder
from .workers import Workers

__all__ = ["Pass", "Runner", "Segment"]


@dataclass
class Pass:
    """A forward pass that was launched. `nodes`: for each segment its new node (one reference, the caller's) or None.

    `read()` waits for the device and gives the logits float32 [answering segments, answer ids] in the order given, and
    the seconds that the device computed. It is called once, from any thread. `wait()` only waits, as often as one likes.
    """

    nodes: list[KVNode | None]
    read: Callable[[], tuple[np.ndarray, float]]
    wait: Callable[[], None] = lambda: None


class Runner:
    """One model, its KV pages and the answer tokens. Not thread-safe, but for `Pass.read`.

    On a GPU all passes run on one stream in the order of their launches, so pages that are given back after a launch
    may be taken for the next one at once.
    """

    def __init__(self, model: Decoder, config: EngineConfig, answer_ids: Sequence[int]):
        """`answer_ids`: token ids whose logits are read, in this order. Raises ConfigError when memory is too small."""
        facts = model.config
        bad = [i for i in answer_ids if not 0 <= i < facts.vocab]
        if bad or not len(answer_ids):
            raise EngineError(
                f"answer token ids are {list(answer_ids)}; accepted: one or more from 0 to {facts.vocab - 1}"
            )
        self.model, self.config, self.answer_ids = model, config, tuple(answer_ids)
        if model.device.type == "cpu":
            threads = config.threads or _all_cores()
            torch.set_num_threads(threads)
            model.workers = Workers(threads)
        keys, values = _kv_dtypes(config, model)
        self.token_bytes = facts.kv_token_bytes(keys.itemsize, values.itemsize, 4 if values == FP8 else 0)
        with current(model.device):
            self._head_rows = model.head(self.answer_ids)
            free = _free_bytes(model.device)
            self.plan = plan_memory(config, self.token_bytes, facts.max_context, model.row_bytes, free)
            self.page_pool = self._make_pool(keys, values)
        self.max_context = self.plan.max_context

    def _make_pool(self, keys: torch.dtype, values: torch.dtype) -> PagePool:
        facts, plan, device = self.model.config, self.plan, self.model.device
        try:
            heads = (facts.layers, facts.kv_heads, facts.head_dim)
            return PagePool(*heads, plan.pages, plan.page_size, values, device, keys)
        except BaseException as error:
            if not _lacks_memory(error):
                raise
            asked = plan.pages * plan.page_size * self.token_bytes
            raise ConfigError(
                f"spark.quail.engine.kvMemory is {self.config.kv_bytes or asked} bytes, which {device} does not have; "
                f"accepted: what is free there ({error})"
            ) from None

    def run(self, segments: Sequence[Segment]) -> tuple[np.ndarray, list[KVNode | None]]:
        """`launch`, and wait: (logits, nodes) as in `Pass`."""
        launched = self.launch(segments)
        try:
            return launched.read()[0], launched.nodes
        except BaseException:
            release(launched.nodes)
            raise

    @torch.inference_mode()
    def launch(self, segments: Sequence[Segment]) -> Pass:
        """Start one forward pass over all segments; on a CPU it is done when this returns.

        Raises OutOfPagesError, OutOfMemoryError, RowError (longer than the context) or EngineError; then nothing stays kept.
        """
        check_segments(segments, self.max_context, self.model.config.vocab)
        batch = pack(segments, self.page_pool)
        try:
            return Pass(batch.nodes, *self._start(batch))
        except BaseException as error:
            release(batch.nodes)
            if not _lacks_memory(error):
                raise
            words = str(error)  # not the error itself: its frames hold the tensors of the pass
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()
        tokens = sum(len(segment.tokens) for segment in segments)
        raise OutOfMemoryError(f"a pass of {tokens} new tokens finds no memory on {self.model.device}: {words}")

    def _start(self, batch: Batch) -> tuple[Callable[[], tuple[np.ndarray, float]], Callable[[], None]]:
        """`read` and `wait` of the pass."""
        logits = np.empty((len(batch.answers), len(self.answer_ids)), dtype=np.float32)
        if not len(batch.tokens):
            return lambda: (logits, 0.0), lambda: None
        result, wait = _launched(self.model.device, lambda: self.model.forward(batch, self.page_pool, self._head_rows))

        def read() -> tuple[np.ndarray, float]:
            wait()
            logits[batch.answers], seconds = result()
            return logits, seconds

        return read, wait

    @property
    def kv_numbers(self) -> str:
        """Number types of KV pages, in words."""
        pool = self.page_pool
        keys, values = (str(x.dtype).removeprefix("torch.") for x in (pool.keys, pool.values))
        return values if keys == values else f"{values}, keys {keys}"

    def describe(self) -> dict:
        """Model, number type and memory plan; bytes and tokens as named."""
        facts, pool = self.model.config, self.page_pool
        return {
            "family": facts.family,
            "layers": facts.layers,
            "hidden": facts.hidden,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "fp8": self.model.fp8,
            "device": str(self.model.device),
            "threads": torch.get_num_threads(),
            "max_context": self.max_context,
            "model_context": facts.max_context,
            "kv_dtype": self.kv_numbers,
            "kv_token_bytes": self.token_bytes,
            "kv_page_tokens": pool.page_size,
            "kv_pages": pool.total_pages,
            "kv_free_pages": pool.free_pages,
            "kv_bytes": pool.total_pages * pool.page_size * self.token_bytes,
            "token_budget": self.plan.token_budget,
            "activation_bytes": self.plan.activation_bytes,
            "free_bytes_at_start": self.plan.free_bytes,
        }


def _kv_dtypes(config: EngineConfig, model: Decoder) -> tuple[torch.dtype, torch.dtype]:
    """Number types of kept keys and values. Raises ConfigError when the model's decoder does not serve them."""
    served = {"auto": (model.dtype, model.dtype)}
    if model.serves_fp8_keys:
        served["fp8-keys"] = (FP8, model.dtype)
    if model.serves_fp8_kv:
        served["fp8"] = (FP8, FP8)
    if config.kv not in served:
        raise ConfigError(
            f"spark.quail.engine.kv is {config.kv!r}; accepted for this model ({model.config.family}) on {model.device}: "
            f"{', '.join(served)} (FP8 takes a GPU of compute capability 8.9 or newer, FP8 for keys alone a model that "
            "norms heads, such as Qwen3)"
        )
    return served[config.kv]


def _launched(
    device: torch.device, compute: Callable[[], torch.Tensor]
) -> tuple[Callable[[], tuple[np.ndarray, float]], Callable[[], None]]:
    """Start `compute` on `device`: what gives its outcome and the seconds that it took there, and what waits for it before."""
    if device.type == "cpu":
        began = time.perf_counter()
        result = compute().numpy()
        seconds = time.perf_counter() - began
        return lambda: (result, seconds), lambda: None
    with current(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        outcome = compute()
        host = torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True)
        host.copy_(outcome, non_blocking=True)
        end.record()

    def wait() -> None:
        with current(device):
            end.synchronize()

    return lambda: (host.numpy(), start.elapsed_time(end) / 1e3), wait


def _lacks_memory(error: BaseException) -> bool:
    """Whether an allocation failed: in Python, in torch's allocators (that of a CPU raises RuntimeError), in a kernel's start."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _free_bytes(device: torch.device) -> int | None:
    if device.type == "cpu":
        return None
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _all_cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
