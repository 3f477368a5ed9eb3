"""What memory goes where, on a CPU and on cards of several sizes."""

import pytest

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.memory_plan import plan_memory
from quail_spark.optimizer.errors import ConfigError

GIB = 1 << 30
# Qwen3-4B: KV of a token in bfloat16; activations of a token, about.
KV, ROW = 147_456, 120_000


def plan(free: float, **settings):
    return plan_memory(EngineConfig(model="m", **settings), KV, 40960, ROW, int(free * GIB))


def test_on_a_cpu_the_settings_decide():
    config = EngineConfig(model="m", kv_bytes=100 * 16 * 1000, page_size=16)
    assert plan_memory(config, 1000, 1000).pages == 100
    cut = plan_memory(config, 1000, 32768)  # the model's own limit is cut to what fits
    assert (cut.pages, cut.max_context, cut.token_budget, cut.free_bytes) == (100, 1600, 4096, None)
    with pytest.raises(
        ConfigError, match="room for 1600 tokens at 1000 bytes each; one prompt of 2000 tokens needs 2000000"
    ):
        plan_memory(EngineConfig(model="m", kv_bytes=1600000, page_size=16, max_context=2000), 1000, 32768)
    with pytest.raises(ConfigError, match="maxContext is 2000 tokens; the model's limit is 1000"):
        plan_memory(EngineConfig(model="m", max_context=2000), 1000, 1000)


@pytest.mark.parametrize("free", [134, 76, 40, 19, 11, 5, 3])
def test_everything_fits_into_a_card(free):
    got = plan(free)
    used = got.pages * got.page_size * KV + got.activation_bytes
    assert used + GIB <= free * GIB < used + GIB + 0.05 * free * GIB + got.page_size * KV
    assert got.activation_bytes == got.token_budget * ROW <= 0.3 * free * GIB
    assert got.max_context == min(40960, got.pages * got.page_size)


def test_a_smaller_card_gets_a_smaller_plan():
    assert [plan(free).token_budget for free in (134, 19, 11, 5)] == [32768, 32768, 16384, 8192]


def test_settings_bound_the_plan():
    got = plan(134, token_budget=1000, kv_bytes=8 * GIB, page_size=128, max_context=5000)
    assert (got.token_budget, got.page_size, got.max_context) == (1000, 128, 5000)
    assert 8 * GIB - 128 * KV < got.pages * 128 * KV <= 8 * GIB


def test_a_refused_start_says_the_numbers():
    with pytest.raises(ConfigError, match=r"has 10\.0 GiB free.*leaves 7\.\d GiB for KV pages; .*asks for 9\.0 GiB"):
        plan(10, kv_bytes=9 * GIB, token_budget=16384)
    with pytest.raises(ConfigError, match=r"has 1\.0 GiB free after the model.*1\.0 GiB stay in reserve"):
        plan(1)
    with pytest.raises(ConfigError, match="one prompt of 40000 tokens needs"):
        plan(5, max_context=40000)
