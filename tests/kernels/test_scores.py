"""Queries and keys in units of their bounds: nothing exceeds e4m3, and products stand for the same scores."""

import math

import pytest
import torch

from quail_spark.kernels import fp8, naive, scores

DIM = 64
SIZES = pytest.mark.parametrize("size", [0.2, 3.0], ids=["bounded", "large"])


def norms(size: float):
    """Weights up to a few times `size`, some of them 0 or negative."""
    q, k = (size * torch.randn(DIM) for _ in "qk")
    q[5] = k[9] = 0
    return q, k


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """`x` [rows, DIM] with each pair of neighbours turned by `angle` [rows, DIM / 2]."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(1, (-1, 2))) * torch.exp(1j * angle)).flatten(1)


@SIZES
@pytest.mark.parametrize("way", ["plain", "fp8"])
def test_products_stand_for_the_same_exponents(size, way):
    pair = norms(size)
    scoring = scores.plain(pair, DIM, torch.bfloat16) if way == "plain" else scores.in_fp8(*pair)
    q, k = torch.randn(2, 30, DIM).exp_()
    want = naive.rms_norm(q, pair[0], 1e-6) @ naive.rms_norm(k, pair[1], 1e-6).T * math.log2(math.e) / math.sqrt(DIM)
    parts = [naive.rms_norm(x, norm, 1e-6) for x, norm in zip((q, k), scoring.norms, strict=True)]
    torch.testing.assert_close(parts[0] @ parts[1].T * scoring.factor, want, rtol=1e-4, atol=1e-4)
    assert scoring.bounded == (size < 1) and (scoring.factor == 1) == scoring.bounded


def test_without_head_norms():
    got = scores.plain(None, DIM, torch.float16)
    assert got.norms is None and not got.bounded
    assert got.factor == pytest.approx(math.log2(math.e) / math.sqrt(DIM))


@SIZES
@pytest.mark.parametrize("which", [0, 1])
def test_nothing_exceeds_the_largest_number(size, which):
    """The worst, a head with all its length where the largest weight is, is the largest number where scores are not bounded."""
    weight = scores.in_fp8(*norms(size)).norms[which]
    worst = torch.zeros(1, DIM)
    worst[0, weight.abs().argmax()] = 3.0
    rows = torch.cat([worst, torch.randn(500, DIM).exp_()])
    angles = torch.rand(501, DIM // 2) * 2 * math.pi
    angles[0] = 0
    got = turned(naive.rms_norm(rows, weight, 0.0).float(), angles).abs()
    assert got.max() < fp8.FP8_MAX * (1 + 1e-5) and got.to(fp8.FP8).float().isfinite().all()
    assert got[0].max() == got.max()
    assert got.max() < 10 if size < 1 else got.max() > 0.999 * fp8.FP8_MAX


@SIZES
def test_rounding_costs_what_it_must(size):
    """The typical element is far above the smallest that e4m3 holds in full, also where few are as large as the largest."""
    scoring = scores.in_fp8(*norms(size))
    heads = naive.rms_norm(torch.randn(200, DIM), scoring.norms[0], 1e-6).float()
    assert (heads.to(fp8.FP8).float() - heads).norm() / heads.norm() < 0.03


def test_weights_of_zero():
    scoring = scores.in_fp8(torch.zeros(DIM), torch.ones(DIM))
    assert (scoring.norms[0] == 0).all() and scoring.norms[1].isfinite().all() and math.isfinite(scoring.factor)


def test_bounded_scores():
    """√dim · max|w_q| · max|w_k| · log2(e) is 98 and 115."""
    norms = torch.ones(128) * 3, torch.ones(128) * 2
    assert scores.are_bounded(*norms, torch.bfloat16)
    assert not scores.are_bounded(norms[0] * -1.17, norms[1], torch.bfloat16)


def test_bounds_of_half_precision():
    """Attention's weights are cast to the number type of the values: 2 to the power of every exponent must be precise there."""
    norms = torch.ones(128) * 0.8, torch.ones(128) * 0.9
    assert scores.plain(norms, 128, torch.float16).bounded
    assert not scores.plain((norms[0], norms[1] * 1.1), 128, torch.float16).bounded
    assert not scores.in_fp8(norms[0], norms[1] * 1.1, torch.float16).bounded
    for dtype, most in scores.MOST.items():
        assert 2.0**-most >= torch.finfo(dtype).smallest_normal and 2.0**most <= torch.finfo(dtype).max
