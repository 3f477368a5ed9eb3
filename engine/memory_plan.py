"""What memory goes where: new tokens of a forward pass (activations) and KV pages, planned once at start."""

from dataclasses import dataclass

from quail_spark.optimizer.errors import ConfigError

from .config import EngineConfig

LEAST_CONTEXT = 256  # tokens: with less KV than this no document is worth starting
CPU_BUDGET, CPU_KV_BYTES, CPU_PAGE = 4096, 2 << 30, 16
GPU_BUDGETS = (32768, 16384, 8192, 4096, 2048, 1024)  # larger ones gained nothing on an H200
GPU_PAGE = 64  # the attention kernels load this many neighbouring tokens at a time
ACTIVATION_SHARE = 0.3  # of the free memory, at most
RESERVE_SHARE, LEAST_RESERVE = 0.04, 1 << 30  # for the allocator's gaps, kernels and the libraries' workspaces


@dataclass(frozen=True)
class MemoryPlan:
    """`token_budget` new tokens a pass; `pages` of `page_size` tokens; `max_context` tokens of one prompt.

    Bytes: `activation_bytes` of one pass, `free_bytes` before any of it was taken (None on a CPU, where memory is not
    planned against what is free).
    """

    token_budget: int
    page_size: int
    pages: int
    max_context: int
    activation_bytes: int = 0
    free_bytes: int | None = None


def plan_memory(
    config: EngineConfig, kv_token_bytes: int, model_context: int, row_bytes: int = 0, free_bytes: int | None = None
) -> MemoryPlan:
    """`kv_token_bytes`: K and V of one token over all layers; `row_bytes`: activations of one new token.

    An asked-for context must fit into the KV memory; the model's own is cut to what fits. Raises ConfigError, with the
    numbers, when something does not fit.
    """
    if config.max_context > model_context:
        raise ConfigError(
            f"spark.quail.engine.maxContext is {config.max_context} tokens; the model's limit is {model_context}"
        )
    if free_bytes is None:
        budget, page, kv_bytes = config.token_budget or CPU_BUDGET, config.page_size or CPU_PAGE, CPU_KV_BYTES
    else:
        budget, page = config.token_budget or _gpu_budget(row_bytes, free_bytes), config.page_size or GPU_PAGE
        kv_bytes = free_bytes - _reserve(free_bytes) - budget * row_bytes
        if (config.kv_bytes or 1) > kv_bytes:
            raise ConfigError(
                f"the device has {_gib(free_bytes)} free after the model; {budget} tokens a pass "
                f"(spark.quail.engine.tokenBudget) take {_gib(budget * row_bytes)} of activations and "
                f"{_gib(_reserve(free_bytes))} stay in reserve, which leaves {_gib(kv_bytes)} for KV pages; "
                f"spark.quail.engine.kvMemory asks for {_gib(config.kv_bytes)}"
            )
    kv_bytes = config.kv_bytes or kv_bytes
    pages = kv_bytes // (page * kv_token_bytes)
    fits = pages * page
    least = config.max_context or min(model_context, LEAST_CONTEXT)
    if fits < least:
        raise ConfigError(
            f"spark.quail.engine.kvMemory is {kv_bytes} bytes, room for {fits} tokens at {kv_token_bytes} bytes each; "
            f"one prompt of {least} tokens needs {-(-least // page) * page * kv_token_bytes} bytes"
        )
    return MemoryPlan(
        budget, page, pages, config.max_context or min(model_context, fits), budget * row_bytes, free_bytes
    )


def _gpu_budget(row_bytes: int, free_bytes: int) -> int:
    fitting = (budget for budget in GPU_BUDGETS if budget * row_bytes <= ACTIVATION_SHARE * free_bytes)
    return next(fitting, GPU_BUDGETS[-1])


def _reserve(free_bytes: int) -> int:
    return max(LEAST_RESERVE, int(RESERVE_SHARE * free_bytes))


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
