"""FP8 products: on a card that has them against float64, elsewhere the fallback."""

import pytest
import torch

from quail_spark.kernels import fp8
from quail_spark.kernels.cublaslt import AddingProduct
from quail_spark.kernels.linear import Linear
from quail_spark.kernels.scaled_linear import ScaledLinear, can_scale, scaled_kinds

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(256, 512), (6144, 2560), (2560, 9728), (1152, 1024)] if DEVICE == "cuda" else [(256, 512)]  # out, in


def error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def weight_and_bias(shape, bias):
    weight = torch.randn(shape, device=DEVICE) * torch.exp(torch.randn(shape[0], 1, device=DEVICE))
    return weight, torch.randn(shape[0], device=DEVICE).mul_(20).bfloat16() if bias else None


@pytest.mark.skipif(not scaled_kinds(DEVICE), reason="no card with FP8 products (compute capability 8.9)")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 16, 300])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", fp8.KINDS)
def test_scaled_products(shape, rows, kind, bias):
    if kind not in scaled_kinds(DEVICE):
        pytest.skip(f"no products scaled by {kind} on this card")
    weight, b = weight_and_bias(shape, bias)
    x = fp8.quantise(torch.randn(rows, shape[1], device=DEVICE), kind)
    layer = ScaledLinear.from_plain(weight, kind, b)
    exact = fp8.dequantise(x).double() @ fp8.dequantise_weight(*fp8.quantise_weight(weight, kind)).double().T
    got = layer(x)
    assert got.dtype == torch.bfloat16 and got.shape == (rows, shape[0])
    assert error(got, exact + (b.double() if bias else 0)) < (
        8e-3 if bias else 4e-3
    )  # the bias is added after rounding


@pytest.mark.skipif(not scaled_kinds(DEVICE), reason="no card with FP8 products (compute capability 8.9)")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", fp8.KINDS)
def test_products_that_add_to_the_residual(shape, kind, bias):
    if kind not in scaled_kinds(DEVICE):
        pytest.skip(f"no products scaled by {kind} on this card")
    weight, b = weight_and_bias(shape, bias)
    layer = ScaledLinear.from_plain(weight, kind, b)
    exact = fp8.dequantise_weight(*fp8.quantise_weight(weight, kind)).double().T
    for rows in (1, 7, 16, 300, 16, 8192):  # one object, back and forth
        x = fp8.quantise(torch.randn(rows, shape[1], device=DEVICE), kind)
        residual = torch.randn(rows, shape[0], device=DEVICE).mul_(30).bfloat16()
        want = residual.double() + fp8.dequantise(x).double() @ exact + (b.double() if bias else 0)
        layer.add_to(residual, x)
        assert error(residual, want) < (6e-3 if bias else 4e-3)


@pytest.mark.skipif(not AddingProduct.serves(torch.device(DEVICE)), reason="needs a Hopper GPU")
@pytest.mark.parametrize("kind", fp8.KINDS)
def test_adding_takes_one_kernel(kind):
    """Against the product and the sum apart: rounded once less."""
    layer = ScaledLinear.from_plain(torch.randn(2560, 4096, device=DEVICE), kind)
    x = fp8.quantise(torch.randn(4096, 4096, device=DEVICE), kind)
    residual = torch.randn(4096, 2560, device=DEVICE).bfloat16()
    apart = residual + layer(x)
    assert AddingProduct(layer.weight, layer.scales, kind).add(x, residual)
    assert error(residual, apart) < 3e-3
    odd = torch.randn(4097 * 2560, device=DEVICE).bfloat16()[1 : 1 + 4096 * 2560].view(4096, 2560)
    before = odd.clone()
    assert not AddingProduct(layer.weight, layer.scales, kind).add(x, odd) and torch.equal(odd, before)
    layer.add_to(odd, x)
    assert error(odd, before + layer(x)) < 3e-3


def test_plain_products_add_too():
    weight, b = weight_and_bias((256, 512), True)
    x = torch.randn(9, 512, device=DEVICE).bfloat16()
    residual = torch.randn(9, 256, device=DEVICE).bfloat16()
    want = residual.double() + x.double() @ weight.bfloat16().double().T + b.double()
    for layer in (Linear(weight.bfloat16(), b, pack=False), ScaledLinear(*fp8.quantise_weight(weight, "row"), None, b)):
        got = residual.clone()
        layer.add_to(got, x)
        assert error(got, want) < (0.05 if isinstance(layer, ScaledLinear) else 8e-3)


@pytest.mark.parametrize("stored", fp8.KINDS)
def test_published_weights_take_every_form(stored):
    weight, b = weight_and_bias((256, 512), True)
    values, scales = fp8.quantise_weight(weight, stored)
    x = torch.randn(5, 512, device=DEVICE).bfloat16()
    want = x.double() @ fp8.dequantise_weight(values, scales).double().T + b.double()
    assert error(ScaledLinear(values, scales, None, b)(x), want) < 4e-3
    for kind in scaled_kinds(DEVICE):
        assert error(ScaledLinear(values, scales, kind, b)(fp8.quantise(x, kind)), want) < 0.06


def test_shapes():
    assert can_scale(6144, 2560, "block") and can_scale(1152, 896, "row")
    assert not can_scale(1152, 896, "block") and not can_scale(130, 512, "row")
