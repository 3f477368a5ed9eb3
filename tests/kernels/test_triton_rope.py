"""The kernel behind the QKV product against the oracle."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from triton_device import DEVICE, HALF, ON_CARD, error, poisoned

from quail_spark.kernels import fp8, naive, scores
from quail_spark.kernels.rows import adjacent_pairs
from quail_spark.kernels.triton_rope import turn_heads

SHAPES = [(4, 2, 128), (7, 1, 64), (3, 3, 64), (0, 2, 64), (5, 0, 128)]  # heads, key/value heads, head_dim
TOLERANCE = 4e-3


def pairs(x):
    """[…, dim] with rotary pairs side by side."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def want_heads(x, heads, cos, sin, norms, eps):
    """Query and key heads in float64, in the checkpoint's order of dimensions."""
    if norms:
        x = torch.cat([naive.rms_norm(x[:, :heads], norms[0], eps), naive.rms_norm(x[:, heads:], norms[1], eps)], 1)
    return naive.rope(x, cos, sin)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_turn_heads(shape, rows, norm, keep):
    heads, kv_heads, dim = shape
    x = torch.randn(rows, heads + 2 * kv_heads, dim).to(HALF)
    turned = heads + kv_heads
    angles = torch.rand(40, dim // 2) * 50
    positions = torch.randint(0, 40, (rows,))
    norms = (torch.rand(dim) + 0.5, torch.rand(dim) + 0.5) if norm else None
    want = pairs(want_heads(x[:, :turned], heads, angles.cos()[positions], angles.sin()[positions], norms, 1e-6))
    turn = torch.polar(torch.ones_like(angles), angles).to(DEVICE)
    qkv = torch.cat([pairs(x[:, :turned]), x[:, turned:]], 1).to(DEVICE)
    pools = [poisoned(50, kv_heads, dim) for _ in "kv"]
    slots = torch.randperm(50)[:rows].to(DEVICE, torch.int32)
    slots[::3] = -1
    turn_heads(
        qkv,
        heads,
        kv_heads,
        turn,
        positions.to(DEVICE, torch.int32),
        [pairs(n).to(DEVICE) for n in norms] if norm else None,
        1e-6,
        (slots, *pools) if keep and kv_heads else None,
    )
    assert error(qkv[:, :turned], want) < TOLERANCE
    assert torch.equal(qkv[:, turned:].cpu(), x[:, turned:]), "values stay"
    if not (keep and kv_heads):
        return
    kept = slots >= 0
    for pool, part in zip(pools, qkv[:, heads:].split(kv_heads, 1), strict=True):
        assert torch.equal(pool[slots[kept].long()], part[kept])
        assert pool.isnan().all(-1).all(-1).sum() == 50 - kept.sum(), "no other slot is written"


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_turned_into_fp8(shape, keep):
    """As in place, then rounded; what was there stays, and keys are kept as they are."""
    heads, kv_heads, dim = shape
    turned = heads + kv_heads
    qkv = torch.randn(19, heads + 2 * kv_heads, dim, device=DEVICE).to(HALF)
    before, inside = qkv.clone(), qkv.clone()
    angles = torch.rand(19, dim // 2, device=DEVICE) * 9
    turn = torch.polar(torch.ones_like(angles), angles)
    units = scores.in_fp8(*(torch.rand(dim, device=DEVICE) + 0.5 for _ in "qk"))
    slots = torch.randperm(50)[:19].to(DEVICE, torch.int32)
    slots[::3] = -1
    keys, values = poisoned(50, kv_heads, dim, dtype=fp8.FP8), poisoned(50, kv_heads, dim)
    out = poisoned(19, turned, dim, dtype=fp8.FP8)
    kept = keep and kv_heads > 0
    turn_heads(qkv, heads, kv_heads, turn, None, units.norms, 1e-6, (slots, keys, values) if kept else None, out)
    turn_heads(inside, heads, kv_heads, turn, None, units.norms, 1e-6)
    assert torch.equal(qkv, before)
    assert error(out.float(), inside[:, :turned]) < (0.04 if ON_CARD else 0.15)
    if kept:
        rows = slots >= 0
        at = slots[rows].long()
        assert torch.equal(keys.view(torch.uint8)[at], out.view(torch.uint8)[rows, heads:])
        assert torch.equal(values[at], before[rows, turned:])
        assert keys.float().isnan().all(-1).all(-1).sum() == 50 - rows.sum(), "no other slot is written"


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("shape", [(0, 2, 128), (4, 2, 64), (0, 1, 32)], ids=str)
def test_kept_heads_in_fp8_have_scales_of_their_own(shape, norm):
    heads, kv_heads, dim = shape
    x = torch.randn(19, heads + 2 * kv_heads, dim, device=DEVICE)
    qkv = (x * torch.exp(2 * torch.randn(19, x.shape[1], 1, device=DEVICE))).to(HALF)
    qkv[3, -1] = 0
    angles = torch.rand(19, dim // 2, device=DEVICE) * 9
    norms = [torch.rand(dim, device=DEVICE) + 0.5 for _ in "qk"] if norm else None
    slots = torch.randperm(50)[:19].to(DEVICE, torch.int32)
    slots[::3] = -1
    pools = [
        fp8.ScaledHeads(poisoned(50, kv_heads, dim, dtype=fp8.FP8), poisoned(50, kv_heads, dtype=torch.float32))
        for _ in "kv"
    ]
    turn_heads(qkv, heads, kv_heads, torch.polar(torch.ones_like(angles), angles), None, norms, 1e-6, (slots, *pools))
    kept = slots >= 0
    for pool, part in zip(pools, qkv[:, heads:].split(kv_heads, 1), strict=True):
        want = fp8.quantise(part[kept].flatten(0, 1), "row")
        torch.testing.assert_close(pool.scales[slots[kept].long()].view(-1, 1), want.scales, rtol=2e-3, atol=0)
        got = pool.values.float() * pool.scales[..., None]
        assert error(got[slots[kept].long()], part[kept]) < (0.04 if ON_CARD else 0.15)
        assert pool.scales.isnan().all(-1).sum() == 50 - kept.sum(), "no other slot is written"


def test_angles_by_row_are_the_default():
    qkv = torch.randn(6, 4, 64, device=DEVICE).to(HALF)
    angles = torch.rand(6, 32, device=DEVICE) * 9
    turn, again = torch.polar(torch.ones_like(angles), angles), qkv.clone()
    turn_heads(qkv, 2, 2, turn)
    turn_heads(again, 2, 2, turn, torch.arange(6, device=DEVICE))
    assert torch.equal(qkv, again)


def test_pairs_are_those_of_the_checkpoint_reordering():
    weight = torch.randn(2 * 16, 3)
    assert torch.equal(adjacent_pairs(weight, 16).T.unflatten(1, (2, 16)), pairs(weight.T.unflatten(1, (2, 16))))
