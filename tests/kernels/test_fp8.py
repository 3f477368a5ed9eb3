"""The FP8 formats."""

import pytest
import torch

from quail_spark.kernels import fp8


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


@pytest.mark.parametrize("kind", fp8.KINDS)
def test_activations_survive(kind):
    x = torch.randn(7, 384) * torch.exp(3 * torch.randn(7, 1))
    got = fp8.quantise(x, kind)
    assert got.values.dtype == fp8.FP8 and got.scales.shape == (7, 1 if kind == "row" else 3)
    assert kind == "row" or got.scales.stride() == (1, 7)
    assert error(fp8.dequantise(got), x) < 0.035
    assert got.values.float().abs().amax() == fp8.FP8_MAX


def test_blocks_are_exact_where_rows_are_not():
    """A block of tiny values beside a huge one."""
    x = torch.cat([torch.randn(3, 128) * 1e-4, torch.randn(3, 128) * 1e3], 1)
    small = {kind: error(fp8.dequantise(fp8.quantise(x, kind))[:, :128], x[:, :128]) for kind in fp8.KINDS}
    assert small["block"] < 0.035 and small["row"] > 0.5


@pytest.mark.parametrize("shape", [(256, 384), (200, 130), (1, 1)], ids=str)
@pytest.mark.parametrize("kind", fp8.KINDS)
def test_weights_survive(shape, kind):
    weight = torch.randn(shape)
    values, scales = fp8.quantise_weight(weight, kind)
    rows, columns = shape
    assert scales.shape == ((rows, 1) if kind == "row" else (-(-rows // 128), -(-columns // 128)))
    assert error(fp8.dequantise_weight(values, scales), weight) < 0.035


def test_requantised_weight():
    weight = torch.randn(256, 384) * torch.exp(torch.randn(256, 1))
    blocks = fp8.quantise_weight(weight, "block")
    values, scales = fp8.requantise_weight(*blocks)
    assert values.dtype == fp8.FP8 and scales.shape == (256, 1)
    assert error(fp8.dequantise_weight(values, scales), fp8.dequantise_weight(*blocks)) < 0.035


def test_zeros():
    for kind in fp8.KINDS:
        assert fp8.dequantise(fp8.quantise(torch.zeros(2, 256), kind)).count_nonzero() == 0
        assert fp8.dequantise_weight(*fp8.quantise_weight(torch.zeros(130, 256), kind)).count_nonzero() == 0
