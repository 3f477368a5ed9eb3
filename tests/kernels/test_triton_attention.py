"""The ragged attention kernel against the oracle, on fresh random ragged input."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from triton_device import DEVICE, HALF, ON_CARD, error, poisoned

from quail_spark.kernels import fp8, naive, triton_ragged
from quail_spark.kernels.ragged import PrefixGroup, Ragged
from quail_spark.kernels.scores import Scoring, plain
from quail_spark.kernels.triton_plan import Cut, Kernels, Long, plan_all, plan_answers
from quail_spark.kernels.triton_quantise import empty_quantised
from quail_spark.kernels.triton_ragged import LONG_PREFIX, LONG_SEGMENT, TritonAttention, can_attend

PAGE = 16
TOLERANCE = 6e-3
HOPPER = ON_CARD and torch.cuda.get_device_capability() == (9, 0)
on_hopper = pytest.mark.skipif(not HOPPER, reason="the interpreter has no Gluon, and the kernel is Hopper's")
if ON_CARD:
    SHAPES = [
        (32, 8, 128),
        (14, 2, 64),
        (4, 4, 64),
        (8, 1, 128),
        (40, 8, 128),
        (9, 3, 64),
    ]  # heads, key/value heads, dim
    CHUNKS = [(9, 0, 300), (0, 7, 90), (5, 6, 200), (1, 0, 2), (0, 1, 2), (40, 30, 700)]  # free, groups, longest
    ODD = [1, PAGE - 1, PAGE, PAGE + 1, 63, 64, 65, 127, 129, 1000]
else:
    SHAPES, CHUNKS, ODD = [(4, 2, 64), (7, 1, 32)], [(3, 0, 50), (2, 2, 40), (0, 1, 2)], [1, PAGE + 1, 65]


def pages(rng, tokens, free):
    """Slots of `tokens` tokens in pages taken from `free`, which may or may not neighbour each other."""
    count = -(-tokens // PAGE)
    taken, free[:] = free[:count], free[count:]
    return np.concatenate([np.arange(p * PAGE, (p + 1) * PAGE) for p in taken])[:tokens]


def chain(rng, lengths, free) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([pages(rng, n, free) for n in lengths]))


def free_pages(rng, count):
    """In order with a few swaps: runs of all lengths."""
    free = list(range(count))
    for a, b in rng.integers(0, count, (count // 12, 2)):
        free[a], free[b] = free[b], free[a]
    return free


def random_ragged(rng, free, groups, longest, pool_pages=4000) -> Ragged:
    """`free` segments without a prefix, then groups of 1–9 segments behind chains of 1–3 nodes; two thirds answer."""
    left = free_pages(rng, pool_pages)
    members = [int(rng.integers(1, 10)) for _ in range(groups)]
    lengths = [1 if rng.random() < 0.2 else int(rng.integers(1, longest)) for _ in range(free + sum(members))]
    prefixes, first = [], free
    for count in members:
        prefixes.append(
            PrefixGroup(first, first + count, chain(rng, rng.integers(1, longest, rng.integers(1, 4)), left))
        )
        first += count
    answers = [s for s in range(len(lengths)) if rng.random() < 0.67]
    return Ragged([0, *np.cumsum(lengths).tolist()], prefixes, answers)


def scaled_heads(pool):
    """A pool in FP8, and what it stands for in float32. NaN stays NaN."""
    rows = fp8.quantise(pool.flatten(0, 1), "row")
    heads = fp8.ScaledHeads(rows.values.view(pool.shape), rows.scales.view(pool.shape[:2]))
    return heads, heads.values.float() * heads.scales[..., None]


def in_units(x, scale: float, scored: bool):
    """Queries or keys · `scale`, in e4m3 if `scored`, and what they stand for in float32. NaN stays NaN."""
    values = (x.float() * scale).to(fp8.FP8 if scored else HALF)
    return values, values.float() / scale


def scales_of(dim: int, bounded: bool, scored: bool) -> tuple[float, float, Scoring]:
    """What queries and keys of about 1 are multiplied by. FP8 holds them where 4 deviations are 256."""
    factor = plain(None, dim, HALF).factor
    if not bounded:
        return (
            (64.0, 64.0, Scoring(None, factor / 64**2, False)) if scored else (1.0, 1.0, Scoring(None, factor, False))
        )
    return (factor**0.5, factor**0.5, Scoring(None, 1.0, True)) if scored else (factor, 1.0, Scoring(None, 1.0, True))


def check(ragged, heads, kv_heads, dim, bounded=False, quantised=None, scaled=False, scored=False):
    """`quantised`: "block", or "values" for values that are at most 1; `scaled`: pools in FP8; `scored`: queries and keys in FP8.

    `attend` and `attend_last` against the oracle.

    Slots outside the prefixes and rows outside the chunk hold NaN; only V of such slots must be finite for the Hopper kernel.
    """
    spare = 5
    qkv = poisoned(ragged.rows + spare, heads + 2 * kv_heads, dim)
    qkv[: ragged.rows] = torch.randn(ragged.rows, heads + 2 * kv_heads, dim, device=DEVICE).to(HALF)
    slots = torch.cat([g.slots for g in ragged.groups]) if ragged.groups else torch.empty(0, dtype=torch.long)
    pools = [poisoned(int(slots.max()) + (1 if scaled else 3) if len(slots) else 1, kv_heads, dim) for _ in "kv"]
    if HOPPER:
        pools[1].fill_(1e4)
    for pool in pools:
        pool[slots.to(DEVICE)] = torch.randn(len(slots), kv_heads, dim, device=DEVICE).to(HALF)
    if quantised == "values":
        for values in (qkv[: ragged.rows, heads + kv_heads :], pools[1]):
            values.div_(8).clamp_(-1, 1)
            values[:, 0] = 1
    wide = [pool.float() for pool in pools]
    scale_q, scale_k, scoring = scales_of(dim, bounded, scored)
    parts = qkv.split((heads, kv_heads, kv_heads), dim=1)
    (q_rows, q), (k_rows, k) = in_units(parts[0], scale_q, scored), in_units(parts[1], scale_k, scored)
    own, q, k, v = (q_rows, k_rows, parts[2]), *(x[: ragged.rows] for x in (q, k, parts[2].float()))
    if scaled:
        pools, wide = zip(*map(scaled_heads, pools), strict=True)
    else:
        pools[0], wide[0] = in_units(pools[0], scale_k, scored)
    plan = TritonAttention(ragged, heads, kv_heads, dim, DEVICE, scored, scaled)
    with torch.device(DEVICE):
        want = naive.attend(q, k, v, *wide, ragged)
    if quantised == "values":
        out = poisoned(ragged.rows + spare, heads, dim, dtype=torch.float8_e4m3fn)
        plan.attend(*own, *pools, out, scoring)
        assert out[ragged.rows :].float().isnan().all()
        assert error(out[: ragged.rows].float() / 448, want) < (0.04 if ON_CARD else 0.15)
        assert (out[: ragged.rows, 0].float() >= (448 if ON_CARD else 416)).all()
    elif quantised:
        out = empty_quantised(ragged.rows + spare, heads * dim, "block", DEVICE)
        out.values.view(torch.uint8).fill_(127)
        out.scales.fill_(float("nan"))
        plan.attend(*own, *pools, out, scoring)
        got = fp8.dequantise(fp8.Quantised(out.values, out.scales))
        assert got[ragged.rows :].isnan().all()
        assert error(got[: ragged.rows], want.flatten(1)) < (0.04 if ON_CARD else 0.15)
    else:
        out = poisoned(ragged.rows + spare, heads, dim)
        plan.attend(*own, *pools, out, scoring)
        assert out[ragged.rows :].isnan().all()
        assert error(out[: ragged.rows], want) < TOLERANCE
    if not ragged.answers:
        return
    rows = [ragged.starts[s + 1] - 1 for s in ragged.answers]
    queries = q_rows.view(torch.uint8)[rows].view(fp8.FP8) if scored else q_rows[rows].contiguous()
    got = plan.attend_last(queries, *own[1:], *pools, scoring)
    assert got.dtype == HALF
    with torch.device(DEVICE):
        want = naive.attend_last(q[rows], k, v, *wide, ragged)
    assert error(got, want) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", CHUNKS, ids=str)
def test_attention(shape, chunk):
    check(random_ragged(np.random.default_rng(), *chunk), *shape)


@pytest.mark.parametrize("chunk", CHUNKS[:3], ids=str)
def test_without_a_running_maximum(chunk):
    check(random_ragged(np.random.default_rng(), *chunk), *SHAPES[0], bounded=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", CHUNKS[:3], ids=str)
def test_prefixes_in_fp8(shape, chunk):
    check(random_ragged(np.random.default_rng(), *chunk), *shape, scaled=True)


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("chunk", CHUNKS[:3], ids=str)
def test_queries_and_keys_in_fp8(shape, chunk, bounded):
    check(random_ragged(np.random.default_rng(), *chunk), *shape, bounded=bounded, scored=True)


@pytest.mark.parametrize("page", [1, PAGE, 64])
@pytest.mark.parametrize("prefix", [90, 97, 250, 300])
def test_prefixes_in_fp8_copied_together_or_too_long_to_copy(prefix, page):
    """30 new tokens: up to 240 of a prefix are copied. The last slot is the pool's last."""
    slots = torch.randperm(640 // page).repeat_interleave(page) * page + torch.arange(page).repeat(640 // page)
    slots = torch.cat([slots[: prefix - 5], slots.max() + torch.arange(1, 6)])
    check(Ragged([0, 9, 12, 30], [PrefixGroup(1, 3, slots)], [0, 2]), *SHAPES[0], scaled=True)


def test_no_kernel_for_hopper_reads_pools_in_fp8(monkeypatch):
    """Its launches replaced by a look at their arguments: long segments alone, prefixes that are copied, and ones too long for it."""
    seen = []
    fake = types.ModuleType("gluon_attention")
    fake.attend_long = lambda q, own, pools, table, *_: seen.append((pools, own, len(table.run_starts)))
    monkeypatch.setitem(sys.modules, "quail_spark.kernels.gluon_attention", fake)
    for name, value in {"on_hopper": lambda _: True, "programs": lambda _: 4, "launch": lambda *_, **__: None}.items():
        monkeypatch.setattr(triton_ragged, name, value)
    monkeypatch.setattr(
        triton_ragged, "gathered", lambda pool, slots, dtype: torch.empty(len(slots), 2, 128, dtype=dtype)
    )
    heads = fp8.ScaledHeads(torch.empty(4000, 2, 128, dtype=fp8.FP8), torch.empty(4000, 2))
    for starts, groups in (
        ([0, 1300], []),
        ([0, 700, 710, 800], [PrefixGroup(1, 3, torch.arange(700))]),
        ([0, 700, 710], [PrefixGroup(1, 2, torch.arange(3900).repeat(2))]),
    ):
        plan = TritonAttention(Ragged(starts, groups, [0]), 8, 2, 128, "cpu", scaled=True)
        q, k, v = torch.empty(starts[-1], 12, 128, dtype=HALF).split((8, 2, 2), dim=1)
        plan.attend(q, k, v, heads, heads, torch.empty(starts[-1], 8, 128, dtype=HALF), plain(None, 128, HALF))
    (alone, own, runs), (copied, _, copied_runs) = seen
    assert alone is own and not runs
    assert copied_runs and all(isinstance(pool, torch.Tensor) and len(pool) == 700 for pool in copied)


@pytest.mark.parametrize("quantised", ["block", "values"])
@pytest.mark.parametrize("chunk", CHUNKS[:2], ids=str)
def test_quantised_output(chunk, quantised):
    check(random_ragged(np.random.default_rng(), *chunk), 4, 2, 128, quantised=quantised)
    check(random_ragged(np.random.default_rng(), *chunk), 4, 2, 128, quantised=quantised, scored=True)


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("tokens", ODD)
@pytest.mark.parametrize("prefix", [0, *ODD])
def test_odd_sizes(tokens, prefix, scored):
    rng = np.random.default_rng()
    slots = chain(rng, [prefix], list(range(8, 200))) if prefix else None
    ragged = Ragged([0, tokens], [PrefixGroup(0, 1, slots)] if prefix else [], [0])
    check(ragged, *SHAPES[0], scored=scored)


def test_one_prefix_for_many_short_segments():
    rng = np.random.default_rng()
    lengths = rng.integers(1, 31, 150 if ON_CARD else 12).tolist()
    slots = chain(rng, [200, 1, 37], free_pages(rng, 40))
    check(
        Ragged([0, *np.cumsum(lengths).tolist()], [PrefixGroup(0, len(lengths), slots)], list(range(len(lengths)))),
        *SHAPES[0],
    )


@pytest.mark.parametrize("prefix", [120, 300], ids=["copied together", "too long to copy"])
@pytest.mark.parametrize("page", [1, PAGE])
def test_scattered_slots(prefix, page):
    slots = torch.randperm(640 // page).repeat_interleave(page) * page + torch.arange(page).repeat(640 // page)
    for scored in (False, True):
        check(Ragged([0, 9, 12, 30], [PrefixGroup(1, 3, slots[:prefix])], [0, 2]), *SHAPES[0], scored=scored)


@pytest.mark.skipif(not ON_CARD, reason="slow in the interpreter")
@pytest.mark.parametrize("tokens,prefix", [(16384, 0), (40, 16384), (1, 16385), (4097, 12000)])
def test_long_context(tokens, prefix):
    rng = np.random.default_rng()
    for pages in (range(1100), rng.permutation(1100)):
        slots = chain(rng, [prefix], list(pages)) if prefix else None
        for scored in (False, True):
            check(Ragged([0, tokens], [PrefixGroup(0, 1, slots)] if prefix else [], [0]), 4, 1, 128, scored=scored)


@on_hopper
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("page", [1024, 64, 16])
@pytest.mark.parametrize("prefix", [*(n + d for n in LONG_PREFIX for d in (-1, 0, 1)), 639, 640, 4100])
@pytest.mark.parametrize("shape", [(32, 8, 128), (14, 2, 64), (40, 8, 128), (4, 4, 128)], ids=str)
def test_long_prefixes(shape, prefix, page, bounded):
    rng = np.random.default_rng()
    lengths = rng.integers(1, 30, 70).tolist()
    slots = rng.permutation(12 * 1024 // page)[:, None] * page + np.arange(page)
    slots = torch.from_numpy(slots.flatten())
    groups = [PrefixGroup(5, 45, slots[:prefix]), PrefixGroup(45, 46, slots[prefix : 2 * prefix + 77])]
    ragged = Ragged([0, *np.cumsum(lengths).tolist()], groups, list(range(0, 70, 3)))
    for scored in (False, True):
        check(ragged, *shape, bounded=bounded, scored=scored)


@on_hopper
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("shape", [(32, 8, 128), (14, 2, 64), (40, 8, 128), (4, 4, 128)], ids=str)
def test_long_segments_behind_chains(shape, bounded):
    """A chain's nodes end within a page, so that its runs are partial; some segments are long themselves."""
    rng, page = np.random.default_rng(), 64
    first = np.cumsum([0, *rng.integers(1, 14, 40)])

    def nodes(count):
        return torch.cat(
            [int(rng.choice(first)) * page + torch.arange(int(rng.integers(1, 800))) for _ in range(count)]
        )

    lengths = [*rng.integers(1, 700, 3), LONG_SEGMENT[1], LONG_SEGMENT[0] - 1, LONG_SEGMENT[0], 1300]
    lengths += [*rng.integers(1, 40, 12), 700, 1, 65, 640, 1400, 2]
    groups = [PrefixGroup(5, 6, nodes(1)[:70]), PrefixGroup(6, 19, nodes(7)), PrefixGroup(19, 22, nodes(3))]
    groups += [PrefixGroup(22, 23, nodes(12)), PrefixGroup(23, 25, nodes(2))]
    ragged = Ragged([0, *np.cumsum(lengths).tolist()], groups, [0, 3, 4, *range(6, 25, 2)])
    for scored in (False, True):
        check(ragged, *shape, bounded=bounded, scored=scored)
        check(ragged, *shape, bounded=bounded, quantised="values", scored=scored)
        if shape[2] == 128:
            check(ragged, *shape, bounded=bounded, quantised="block", scored=scored)


def test_no_answers_and_no_rows():
    check(Ragged([0, 4, 9], [PrefixGroup(1, 2, torch.arange(3))], []), *SHAPES[0])
    plan = TritonAttention(Ragged([0], [], []), 4, 2, 64, DEVICE)
    empty = torch.empty(0, 8, 64, dtype=HALF, device=DEVICE)
    plan.attend(empty[:, :4], empty[:, :2], empty[:, :2], empty, empty, empty, plain(None, 64, HALF))


@pytest.mark.parametrize("least", [1, 100, 10**9])
@pytest.mark.parametrize("plan", [plan_all, plan_answers])
@pytest.mark.parametrize("tile,run", [(32, 64), (1, 16), (7, 128)])
def test_tiles_hold_every_query_once_and_runs_every_slot(plan, tile, run, least):
    ragged = random_ragged(np.random.default_rng(), 12, 9, 150)
    got = plan(ragged, Kernels(Cut(tile, run), Cut(tile, run), Long(Cut(2 * tile, 2 * run), least, least, 11, 3)))
    assert sorted(got.items[got.items >= 0]) == list(range(3 * len(got.long.tiles))) and got.items.shape[1] <= 11
    assert (got.items[:-1] >= 0).all()
    tiles = [(kernel, *row) for kernel in (got.short, got.long) for row in kernel.tiles]
    seen = np.concatenate([np.arange(first, first + count) for _, first, count, *_ in tiles])
    assert sorted(seen) == list(range(ragged.rows if plan is plan_all else len(ragged.answers)))
    assert (got.short.tiles[: got.short.plain, 2:5] == 0).all()
    segment_of = np.repeat(np.arange(ragged.segments), np.diff(ragged.starts))
    for kernel, first, count, begin, partial, end, low, shared, steps in tiles:
        most, step = (2 * tile, 2 * run) if kernel is got.long else (tile, run)
        assert count <= most
        rows = got.highs[first : first + count]
        group = set(segment_of[rows])
        want = [g.slots.numpy() for g in ragged.groups if g.first <= min(group) and max(group) < g.last]
        runs = zip(kernel.run_starts[begin:end], kernel.run_counts[begin:end], strict=True)
        slots = [np.arange(s, s + c) for s, c in runs]
        assert sorted(np.concatenate([[], *slots])) == sorted(np.concatenate([[], *want]))
        assert (kernel.run_counts[begin:partial] == step).all() and (kernel.run_counts[partial:end] < step).all()
        lows = got.lows[first : first + count]
        assert low == lows.min() and low + shared * step <= rows.min() + 1
        assert shared == 0 or (lows == low).all()
        assert low + (steps - 1) * step <= rows.max() < low + steps * step


def test_long_prefixes_and_long_segments_go_to_the_kernel_for_them():
    groups = [PrefixGroup(1, 3, torch.arange(90)), PrefixGroup(4, 5, torch.arange(60))]
    ragged = Ragged([0, 100, 109, 120, 219, 319], groups, [0, 2, 4])
    kernels = Kernels(Cut(16, 32), Cut(32, 64), Long(Cut(32, 128), 100, 90, 132, 8))
    plan, answers = plan_all(ragged, kernels), plan_answers(ragged, kernels)
    queries = [np.concatenate([np.arange(t[0], t[0] + t[1]) for t in k.tiles]) for k in (plan.short, plan.long)]
    assert [sorted(q) for q in queries] == [[*range(120, 219)], [*range(120), *range(219, 319)]]
    assert answers.short.tiles[:, 0].tolist() == [0, 2] and answers.long.tiles[:, 0].tolist() == [1]
    assert not len(plan_all(ragged, Kernels(Cut(16, 32), Cut(32, 64))).long.tiles)


def test_a_prefix_without_slots_has_no_runs():
    groups = [
        PrefixGroup(0, 1, torch.arange(70)),
        PrefixGroup(1, 2, torch.arange(0)),
        PrefixGroup(2, 3, torch.arange(5)),
    ]
    got = plan_all(Ragged([0, 3, 5, 9], groups, []), Kernels(Cut(32, 32), Cut(32, 64))).short
    assert {tuple(t[[0, 2, 3, 4]]) for t in got.tiles} == {(0, 0, 1, 2), (3, 2, 2, 2), (5, 2, 2, 3)}


def test_shapes_that_need_the_reference():
    assert can_attend(32, 8, 128) and not can_attend(32, 8, 96) and not can_attend(5, 2, 64)
