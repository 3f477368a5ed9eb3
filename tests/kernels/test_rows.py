"""Row operations and linear layers against their oracles."""

import pytest
import torch

from quail_spark.kernels import naive
from quail_spark.kernels.linear import GatedMLP, Linear, can_pack
from quail_spark.kernels.rows import adjacent_pairs, qk_norm_rope, rms_norm, rope, swiglu

DTYPES = [torch.float32, torch.bfloat16]


def near(got, want, dtype):
    torch.testing.assert_close(
        got.double(),
        want.double(),
        **({"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 4e-2}),
    )


def turns(rows: int, dim: int):
    angles = torch.rand(rows, dim // 2) * 50
    return angles.cos(), angles.sin(), torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def pairs(x):
    """The order of dimensions that the kernels work in."""
    return adjacent_pairs(x.flatten(1).T, x.shape[-1]).T.unflatten(1, x.shape[1:]).contiguous()


def halves(x):
    """The inverse of `pairs`: the order of dimensions in checkpoints."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 48), (37, 896), (5, 3, 64)], ids=str)
def test_rms_norm(shape, dtype):
    x, weight = (torch.randn(shape) * 3).to(dtype), torch.randn(shape[-1])
    got = rms_norm(x, weight, 1e-6)
    assert got.dtype == dtype
    near(got, naive.rms_norm(x, weight, 1e-6), dtype)


def test_rms_norm_of_zeros_is_finite():
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 128])
def test_rope(dim, dtype):
    x = pairs(torch.randn(21, 5, dim)).to(dtype)
    before = x.clone()
    cos, sin, turn = turns(21, dim)
    out = torch.empty_like(x)
    rope(x, 3, turn, out)
    near(out[:, :3], pairs(naive.rope(halves(x[:, :3]), cos, sin)), dtype)
    assert torch.equal(out[:, 3:], x[:, 3:]) and torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qk_norm_rope(dtype):
    x, weight = pairs(torch.randn(9, 6, 64)).to(dtype), torch.randn(64)
    before = x.clone()
    cos, sin, turn = turns(9, 64)
    out = torch.empty_like(x)
    qk_norm_rope(x, adjacent_pairs(weight, 64).expand(4, 64), 1e-6, turn, out)
    near(out[:, :4], pairs(naive.rope(naive.rms_norm(halves(x[:, :4]), weight, 1e-6), cos, sin)), dtype)
    assert torch.equal(out[:, 4:], x[:, 4:]) and torch.equal(x, before)


def test_adjacent_pairs_leaves_products_of_heads_alone():
    q, k = torch.randn(2, 7, 3, 16)
    torch.testing.assert_close((pairs(q) * pairs(k)).sum(-1), (q * k).sum(-1))
    assert adjacent_pairs(torch.arange(8), 8).tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 16, 300])
def test_linear(rows, bias, pack, dtype):
    x, weight = torch.randn(rows, 48).to(dtype), (torch.randn(80, 48) / 7).to(dtype)
    b = torch.randn(80).to(dtype) if bias else None
    residual = torch.randn(rows, 80).to(dtype)
    layer = Linear(weight, b, pack)
    assert layer.packed == (pack and can_pack(weight))
    want = x.double() @ weight.double().T + (b.double() if bias else 0)
    near(layer(x), want, dtype)
    near(layer.plus(x, residual), want + residual.double(), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("rows", [1, 33])
def test_gated_mlp(rows, pack, dtype):
    x, residual = torch.randn(2, rows, 48).to(dtype)
    gate_up, down = (torch.randn(2 * 96, 48) / 7).to(dtype), (torch.randn(48, 96) / 10).to(dtype)
    near(GatedMLP(gate_up, down, pack=pack).plus(x, residual), naive.gated_mlp(x, residual, gate_up, down), dtype)


@pytest.mark.parametrize("pack", [True, False])
def test_gated_mlp_with_biases(pack):
    x, residual = torch.randn(2, 5, 48)
    gate_up, down, b, d = torch.randn(192, 48) / 7, torch.randn(48, 96) / 10, torch.randn(192), torch.randn(48)
    ones = torch.ones(5, 1)
    want = naive.gated_mlp(torch.cat([x, ones], 1), residual + d, torch.cat([gate_up, b[:, None]], 1), down)
    near(GatedMLP(gate_up, down, b, d, pack).plus(x, residual), want, torch.float32)


def test_swiglu():
    gate, up = torch.randn(2, 6, 10)
    near(swiglu(torch.cat([gate, up], 1)), (gate / (1 + (-gate).exp())) * up, torch.float32)
