"""The MLP whose scales are known beforehand: the folding in plain torch, and the Hopper kernel against it."""

import pytest
import torch

from quail_spark.kernels import fp8, rows
from quail_spark.kernels.mlp import BoundedMlp, Mlp, fold
from quail_spark.kernels.scaled_linear import ScaledLinear

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def weights(hidden: int, inner: int, device="cpu"):
    """e4m3 gate-up rows of very different lengths with their scales, one of them 0, and a down matrix."""
    lengths = torch.exp(torch.randn(2 * inner, 1, device=device))
    lengths[torch.randint(2 * inner, (1,))] = 0
    plain = torch.randn(2 * inner, hidden, device=device) * lengths / hidden**0.5
    return *fp8.quantise_weight(plain, "row"), torch.randn(hidden, inner, device=device) / inner**0.5


def rows_of(count: int, hidden: int, device="cpu"):
    """Rows of very different lengths; one points where a gate row may point, one is 0."""
    x = torch.randn(count, hidden, device=device) * torch.exp(2 * torch.randn(count, 1, device=device))
    x[0] = 0
    return x


def test_folding_changes_no_result_and_keeps_every_product_within_its_bound():
    gate_up, scales, down = weights(256, 128)
    x = rows_of(50, 256)
    gate, up = torch.nn.functional.normalize(fp8.dequantise_weight(gate_up, scales)).chunk(2)
    x = fp8.bound(torch.cat([x, gate, -gate, up + gate, up - gate]))
    plain = fp8.dequantise(fp8.Quantised(*x[:2]))
    folded_scales, folded_down = fold(gate_up, scales, down)
    before = rows.swiglu(plain @ fp8.dequantise_weight(gate_up, scales).T)
    after = rows.swiglu(plain @ fp8.dequantise_weight(gate_up, folded_scales).T)
    assert (after.abs() <= fp8.FP8_MAX * x.bounds).all()
    want = before @ down.T
    assert ((after @ folded_down.T - want).norm(dim=1) <= 1e-4 * want.norm(dim=1)).all()


def test_bounds_are_reached_by_rows_that_point_along_the_weights():
    """A bound that were much too wide would leave the format's finest steps unused."""
    gate_up, scales = fp8.quantise_weight(10 * torch.randn(2, 256), "row")
    folded_scales, _ = fold(gate_up, scales, torch.randn(8, 1))
    gate, up = torch.nn.functional.normalize(fp8.dequantise_weight(gate_up, scales))
    x = fp8.bound((gate + up * torch.sign(gate @ up))[None])
    plain = fp8.dequantise(fp8.Quantised(*x[:2]))
    after = rows.swiglu(plain @ fp8.dequantise_weight(gate_up, folded_scales).T)
    assert 0.7 * fp8.FP8_MAX < (after / x.bounds).abs().max() <= fp8.FP8_MAX


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 129, 1000, 20_000])
@pytest.mark.parametrize(("hidden", "inner"), [(128, 128), (896, 4864), (2560, 9728), (4096, 14336)])
def test_hopper_kernel(count, hidden, inner):
    from quail_spark.kernels.gluon_gate_up import COLUMNS, gate_up_swiglu, pieces

    gate_up, scales, down = weights(hidden, inner, "cuda")
    scales, _ = fold(gate_up, scales, down)
    x = fp8.bound(rows_of(count, hidden, "cuda"))
    got = gate_up_swiglu(*x, pieces(gate_up, COLUMNS), scales).float()
    sample = torch.cat([torch.arange(min(count, 64)), torch.randint(count, (64,))]).unique().cuda()
    plain = fp8.dequantise(fp8.Quantised(x.values[sample], x.scales[sample]))
    want = rows.swiglu(plain @ fp8.dequantise_weight(gate_up, scales).T) / x.bounds[sample]
    # Half a step of e4m3, which is 2⁻⁹ at least; and what sums of products lose.
    allowed = (want.abs() * 2**-4).clamp_min(2**-10) + 2e-3 * want.abs() + 3e-3 * want.abs().amax(1, keepdim=True)
    assert ((got[sample] - want).abs() <= allowed).all()


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("hidden", "inner"), [(896, 4864), (2560, 9728)])
def test_answers_of_the_whole_are_as_good_as_those_of_its_parts(hidden, inner):
    gate_up, scales, down = weights(hidden, inner, "cuda")
    x = fp8.bound(rows_of(300, hidden, "cuda"))
    layer, bias = ScaledLinear(gate_up, scales, "row"), torch.randn(hidden, device="cuda").bfloat16()
    assert BoundedMlp.serves(layer)
    plain = fp8.dequantise(fp8.Quantised(*x[:2]))
    want = rows.swiglu(plain @ fp8.dequantise_weight(gate_up, scales).T) @ down.T + bias
    whole, parts = torch.zeros(2, 300, hidden, device="cuda", dtype=torch.bfloat16)
    BoundedMlp(gate_up, scales, down, bias).add_to(whole, x)
    Mlp(layer, ScaledLinear.from_plain(down, "row", bias)).add_to(parts, fp8.Quantised(*x[:2]))
    whole, parts = whole.float(), parts.float()
    assert (whole - want).norm() < 1.5 * (parts - want).norm() < 0.1 * want.norm()
