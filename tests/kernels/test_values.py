"""Values in units of their bounds: the folding changes nothing but the units, and no value exceeds its bound."""

import pytest
import torch

from quail_spark.kernels import fp8
from quail_spark.kernels.naive import rms_norm
from quail_spark.kernels.scaled_linear import ScaledLinear
from quail_spark.kernels.values import bounds, can_fold, fold

HIDDEN, HEADS, KV_HEADS, DIM = 256, 6, 2, 16


def layer(bias: bool):
    """Q, K and V channels of very different lengths, two of them 0, the norm before them, and O."""
    out = (HEADS + 2 * KV_HEADS) * DIM
    weight = torch.randn(out, HIDDEN) * torch.exp(torch.randn(out, 1))
    weight[-3] = weight[7] = 0
    first = ScaledLinear.from_plain(weight, "row", torch.randn(out).mul_(3) if bias else None)
    return first, torch.randn(HIDDEN), torch.randn(HIDDEN, HEADS * DIM)


def channels(first: ScaledLinear, x: fp8.Quantised) -> torch.Tensor:
    out = fp8.dequantise(x) @ fp8.dequantise_weight(first.weight, first.scales.t()).T
    return out if first.bias is None else out + first.bias


def normed(norm: torch.Tensor, rows: torch.Tensor) -> fp8.Quantised:
    return fp8.quantise(rms_norm(rows, norm, 1e-6), "row")


@pytest.mark.parametrize("bias", [True, False])
def test_folding_changes_units_only(bias):
    first, norm, o = layer(bias)
    x = normed(norm, torch.randn(40, HIDDEN) * torch.exp(torch.randn(40, 1)))
    before = channels(first, x)
    bound = bounds(first, norm, KV_HEADS * DIM)
    folded = fold(first, norm, o, HEADS, KV_HEADS)
    after = channels(first, x)
    values = KV_HEADS * DIM
    assert torch.equal(after[:, :-values], before[:, :-values])
    torch.testing.assert_close(after[:, -values:] * bound, before[:, -values:], rtol=1e-4, atol=1e-4)

    # Attention of one key gives its values to each head of the group.
    def of_heads(x):
        return x[:, -values:].unflatten(1, (KV_HEADS, DIM)).repeat_interleave(HEADS // KV_HEADS, 1).flatten(1)

    torch.testing.assert_close(of_heads(after) @ folded.T, of_heads(before) @ o.T, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("bias", [True, False])
def test_no_value_exceeds_its_bound_and_some_come_near(bias):
    first, norm, o = layer(bias)
    values = KV_HEADS * DIM
    weight = fp8.dequantise_weight(first.weight, first.scales.t())[-values:]
    along = weight * norm * torch.sign(first.bias[-values:, None] if bias else torch.ones(values, 1))
    fold(first, norm, o, HEADS, KV_HEADS)
    worst = channels(first, normed(norm, torch.cat([along, -along, torch.randn(50, HIDDEN)])))[:, -values:].abs()
    assert worst.max() <= 1
    assert worst[: len(along)].diagonal().max() > 0.85


def test_only_products_scaled_by_row():
    first, _, _ = layer(False)
    assert can_fold(first, (HIDDEN, HEADS * DIM), "row")
    assert not can_fold(first, (HIDDEN, HEADS * DIM), "block") and not can_fold(first, (HIDDEN, 100), "row")
    assert not can_fold(ScaledLinear.from_plain(torch.randn(512, 512), "block"), (512, 512), "row")
    assert not can_fold(torch.nn.Linear(4, 4), (4, 4), None)
