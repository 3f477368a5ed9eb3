"""Devices by name, and what their efficiency does to seconds."""

import pytest

from quail_spark.optimizer.device import cpu, find_device
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.work import Length, Work, run


def test_names_that_cuda_gives():
    names = {"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA A100-SXM4-40GB": "A100", "NVIDIA L4": "L4"}
    assert {name: find_device(name).name for name in names} == names
    assert find_device("NVIDIA L40S") is None
    assert find_device("cpu", cores=4).bf16_flops == 2 * cpu(2).bf16_flops


def test_precision():
    assert find_device("H100").linear_flops("auto") == 2 * find_device("H100").linear_flops("bfloat16") + 1e12
    assert find_device("A100").linear_flops("auto") == 312e12
    with pytest.raises(ConfigError, match="'fp8', which A100 lacks"):
        find_device("A100").linear_flops("fp8")
    with pytest.raises(ConfigError, match="accepted: auto, fp8, bfloat16"):
        find_device("A100").linear_flops("int4")
    with pytest.raises(ConfigError, match="number of cores is 0"):
        cpu(0)


def test_the_measured_speeds_come_out():
    """137–150 k tokens/s of Qwen3-4B on documents of about 390 tokens (H200); 900 of the 0.5B model on two cores."""
    documents = run(Length.exactly(390)) * 1000
    h200 = Roofline(known_model("qwen3-4b"), find_device("H200"), "fp8")
    assert 137_000 < documents.fresh / h200(documents) < 150_000
    small = Roofline(known_model("qwen2.5-0.5b"), cpu(2))
    assert 800 < documents.fresh / small(documents) < 950


def test_phases_add_up_and_slower_of_reading_and_computing_counts():
    h200 = Roofline(known_model("qwen3-4b"), find_device("H200"))
    work = Work(fresh=1e6, own_pairs=1e9, kept_pairs=1e9, kv_written=1e6)
    alone = h200.seconds(work)
    assert h200(work) == pytest.approx(alone.linear + alone.attention + alone.traffic)
    assert h200.seconds(work + Work(kv_read=1)).attention == alone.attention
    assert h200.seconds(work + Work(kv_read=1e9)).attention > 5 * alone.attention
    light = h200.speed_of_light().seconds(work)
    assert light.traffic == 0 and light.linear < alone.linear and light.attention < alone.attention
