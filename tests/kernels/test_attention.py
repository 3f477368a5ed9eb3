"""Packed attention against the oracle, on fresh random ragged input."""

import numpy as np
import pytest
import torch

from quail_spark.kernels import naive
from quail_spark.kernels.attention import Attention, merge
from quail_spark.kernels.padding import CALL_PAIRS, MOST_KEYS, PAD_SHARE, PaddedRows, similar
from quail_spark.kernels.ragged import PrefixGroup, Ragged

HEADS = [(4, 4, 64), (14, 2, 64), (8, 1, 128), (6, 3, 8)]  # heads, key/value heads, head_dim
SLOTS = 700


def random_ragged(rng: np.random.Generator, free: int, groups: int, longest: int) -> Ragged:
    """`free` segments without a prefix, then `groups` groups of 1–6 segments; about two thirds answer."""
    members = [int(rng.integers(1, 7)) for _ in range(groups)]
    lengths = [1 if rng.random() < 0.2 else int(rng.integers(1, longest)) for _ in range(free + sum(members))]
    prefixes, first = [], free
    for count in members:
        slots = torch.from_numpy(rng.permutation(SLOTS)[: rng.integers(1, 150)].copy())
        prefixes.append(PrefixGroup(first, first + count, slots))
        first += count
    answers = [s for s in range(len(lengths)) if rng.random() < 0.67]
    return Ragged([0, *np.cumsum(lengths).tolist()], prefixes, answers)


def random_input(ragged: Ragged, heads: int, kv_heads: int, dim: int, dtype=torch.float32, spare: int = 5):
    qkv = torch.randn(ragged.rows + spare, heads + 2 * kv_heads, dim).to(dtype)
    pools = [torch.randn(SLOTS, kv_heads, dim).to(dtype) for _ in "kv"]
    return qkv, *pools


def both(ragged, heads, kv_heads, dim, dtype=torch.float32):
    """(fast, naive) for `attend` and for `attend_last`."""
    qkv, pool_k, pool_v = random_input(ragged, heads, kv_heads, dim, dtype)
    q, k, v = qkv[: ragged.rows].split((heads, kv_heads, kv_heads), dim=1)
    plan = Attention(ragged)
    out = torch.full((len(qkv), heads, dim), 7.0, dtype=dtype)
    plan.attend(qkv, heads, pool_k, pool_v, out)
    assert (out[ragged.rows :] == 7).all()
    queries = q[[ragged.starts[s + 1] - 1 for s in ragged.answers]]
    last = plan.attend_last(queries, qkv[:, heads:], pool_k, pool_v)
    return (
        (out[: ragged.rows], naive.attend(q, k, v, pool_k, pool_v, ragged)),
        (last, naive.attend_last(queries, k, v, pool_k, pool_v, ragged)),
    )


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize(
    "free,groups,longest", [(9, 0, 90), (0, 7, 40), (5, 6, 25), (3, 2, 260), (1, 0, 2), (0, 1, 2), (2, 1, 1300)]
)
def test_attention(shape, free, groups, longest):
    for got, want in both(random_ragged(np.random.default_rng(), free, groups, longest), *shape):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def test_attention_in_bfloat16():
    for got, want in both(random_ragged(np.random.default_rng(), 6, 6, 120), 14, 2, 64, torch.bfloat16):
        torch.testing.assert_close(got.float(), want.float(), rtol=0.02, atol=0.02)


def test_one_prefix_for_many_short_segments():
    rng = np.random.default_rng()
    lengths = rng.integers(1, 31, 150).tolist()
    ragged = Ragged([0, *np.cumsum(lengths).tolist()], [PrefixGroup(0, 150, torch.arange(600))], list(range(150)))
    for got, want in both(ragged, 14, 2, 64):
        torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def test_no_answers():
    ragged = Ragged([0, 4, 9], [PrefixGroup(1, 2, torch.arange(3))], [])
    assert both(ragged, 4, 2, 8)[1][0].shape == (0, 4, 8)


def test_merge_is_attention_over_the_union():
    scores, values = torch.randn(3, 5, 40) * 4, torch.randn(3, 5, 40, 16)
    parts = [(scores[..., s], values[..., s, :]) for s in (slice(0, 11), slice(11, 40))]
    outs = [((s.softmax(-1).unsqueeze(-2) @ v).squeeze(-2), s.logsumexp(-1)) for s, v in parts]
    want = (scores.softmax(-1).unsqueeze(-2) @ values).squeeze(-2)
    got, lse = merge(*outs[0], *outs[1])
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=0, atol=1e-5)


def test_batches_hold_every_item_once_and_little_padding():
    rng = np.random.default_rng()
    for _ in range(50):
        sizes = [tuple(map(int, rng.lognormal(4, 1.2, 2) + 1)) for _ in range(rng.integers(0, 60))]
        batches = similar(sizes)
        assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
        for batch in batches:
            queries, keys = (max(sizes[i][d] for i in batch) for d in (0, 1))
            useful = sum(sizes[i][0] * sizes[i][1] for i in batch)
            assert len(batch) * queries * keys - useful <= CALL_PAIRS + PAD_SHARE * useful
            assert len(batch) == 1 or len(batch) * keys <= MOST_KEYS


@pytest.mark.parametrize("counts", [[3, 3, 3], [3, 1, 5], [1], [4, 4]], ids=str)
@pytest.mark.parametrize("gap", [0, 2])
def test_padded_rows(counts, gap):
    starts = [int(s) + i * gap for i, s in enumerate(np.cumsum([0, *counts])[:-1])]
    rows, x = PaddedRows(starts, counts), torch.randn(40, 2)
    runs = [x[s : s + c] for s, c in zip(starts, counts, strict=True)]
    padded = rows.gather(x)
    assert padded.shape == (len(counts), max(counts), 2)
    for got, run in zip(padded, runs, strict=True):
        assert torch.equal(got[: len(run)], run) and (got[len(run) :] == run[-1]).all()
    assert torch.equal(rows.real_rows(padded), torch.cat(runs)) and torch.equal(rows.take(x), torch.cat(runs))
    target = torch.zeros(40, 2)
    rows.put(target, torch.cat(runs))
    assert all(torch.equal(target[s : s + c], x[s : s + c]) for s, c in zip(starts, counts, strict=True))
    assert target.count_nonzero() == 2 * sum(counts)
