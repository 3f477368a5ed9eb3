"""Norm, SwiGLU and quantisation kernels against plain torch."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from triton_device import DEVICE, HALF, ON_CARD, error

from quail_spark.kernels import fp8, naive, rows, triton_quantise

ROWS_COLUMNS = [(1, 128), (5, 2560), (3, 896), (2, 9728), (8, 256), (17, 384)]
KINDS = ["row", "block", None]


def spiky(*shape):
    """Fresh random values whose magnitudes differ from row to row and column to column."""
    scale = torch.exp(torch.randn(shape[0], 1) + torch.randn(1, shape[1]))
    return (torch.randn(shape) * scale).to(DEVICE, HALF)


def check(got, want, kind):
    """`want` is the result before quantisation, in float32."""
    if kind is None:
        assert error(got, want) < 4e-3
        return
    reference = fp8.quantise(want.cpu(), kind)
    assert got.values.shape == reference.values.shape and got.scales.stride() == reference.scales.stride()
    torch.testing.assert_close(got.scales.cpu(), reference.scales, rtol=1e-4, atol=0)
    back = fp8.dequantise(fp8.Quantised(got.values.cpu(), got.scales.cpu()))
    # The interpreter cuts to FP8 instead of rounding.
    assert error(back, want) < (0.04 if ON_CARD else 0.15)
    if not ON_CARD:
        return
    # Where a scale is a power of two many bfloat16 values lie halfway between two FP8 numbers, and may round either way.
    assert error(back, fp8.dequantise(reference)) < 0.02


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ROWS_COLUMNS, ids=str)
def test_rms_norm(shape, kind):
    x, weight = spiky(*shape), torch.randn(shape[1], device=DEVICE)
    check(triton_quantise.rms_norm(x, weight, 1e-6, kind), naive.rms_norm(x, weight, 1e-6).float(), kind)


@pytest.mark.parametrize("shape", ROWS_COLUMNS, ids=str)
def test_bounds_of_the_norm(shape):
    x, weight = spiky(*shape), torch.randn(shape[1], device=DEVICE)
    got = triton_quantise.rms_norm(x, weight, 1e-6, "bounded")
    want = naive.rms_norm(x.float(), weight, 1e-6)
    check(fp8.Quantised(*got[:2]), want, "row")
    torch.testing.assert_close(got.bounds.cpu(), fp8.bound(want.cpu()).bounds, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ROWS_COLUMNS, ids=str)
def test_swiglu(shape, kind):
    gate_up = torch.randn(shape[0], 2 * shape[1], device=DEVICE).mul_(3).to(HALF)
    check(triton_quantise.swiglu(gate_up, kind), rows.swiglu(gate_up.float()), kind)


@pytest.mark.parametrize("kind", fp8.KINDS)
@pytest.mark.parametrize("shape", ROWS_COLUMNS, ids=str)
def test_quantise(shape, kind):
    x = spiky(*shape)
    check(triton_quantise.quantise(x, kind), x.float(), kind)


@pytest.mark.parametrize("kind", fp8.KINDS)
def test_rows_of_zeros_and_no_rows(kind):
    zeros = torch.zeros(2, 256, dtype=HALF, device=DEVICE)
    assert fp8.dequantise(triton_quantise.quantise(zeros, kind)).count_nonzero() == 0
    assert triton_quantise.quantise(zeros[:0], kind).values.shape == (0, 256)
    assert triton_quantise.rms_norm(zeros[:0], torch.ones(256, device=DEVICE), 1e-6, kind).values.shape == (
        0,
        256,
    )
