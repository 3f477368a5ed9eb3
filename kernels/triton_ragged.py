"""The GPU counterpart of `attention.Attention`: plans a ragged chunk once and launches its kernels for every layer."""

from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .fp8 import BLOCK, FP8, Quantised, ScaledHeads
from .launching import launch, on_hopper, programs
from .ragged import PrefixGroup, Ragged
from .scores import Scoring
from .sending import send
from .triton_attention import BOUNDED_VALUES, BY_BLOCK, PLAIN, attention_kernel
from .triton_kv import gathered
from .triton_plan import Cut, Kernels, Long, Plan, TilePlan, plan_all, plan_answers, stretches


@dataclass(frozen=True)
class Launch:
    """`rows` of a tile (queries · heads that share a key), `keys` a step of own rows, `run` slots a step of the prefix."""

    rows: int
    keys: int
    run: int
    warps: int
    stages: int


# The fastest of some forty on an H200; see docs/gpu-notes.md.
OWN = Launch(rows=64, keys=32, run=32, warps=4, stages=3)
SHARED = Launch(rows=128, keys=64, run=64, warps=4, stages=2)
FINE = Launch(rows=128, keys=64, run=16, warps=4, stages=3)  # prefixes in short runs, too long to copy
SHARED_WIDE = Launch(rows=64, keys=32, run=32, warps=4, stages=2)  # float32: what fits into a multiprocessor's memory
FINE_WIDE = Launch(rows=64, keys=32, run=16, warps=4, stages=3)
NARROW = Launch(rows=16, keys=64, run=64, warps=4, stages=2)
HOPPER_ROWS, HOPPER_RUN = 128, 64  # of `gluon_attention`
# Tokens from which on the Hopper kernel pays, with queries and keys in half precision and in FP8.
LONG_SEGMENT, LONG_PREFIX = (600, 2000), (96, 200)
COPIED_SHARE = 8  # prefix tokens for each new one: up to here scattered prefixes are copied together, each layer
COPIED_IN_A_RUN = 28  # tokens of a prefix that are copied in the time of a run of the Hopper kernel


def can_attend(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether these kernels serve the shape; the reference serves all."""
    return head_dim in (16, 32, 64, 128) and heads % kv_heads == 0 and heads // kv_heads <= OWN.rows


Pool = torch.Tensor | ScaledHeads


class TritonAttention:
    """The plan of one chunk on `device`, used by every layer: the interface and the results of `attention.Attention`."""

    def __init__(
        self,
        ragged: Ragged,
        heads: int,
        kv_heads: int,
        dim: int,
        device,
        scored: bool = False,
        scaled: bool = False,
        dtype: torch.dtype = torch.bfloat16,
    ):
        """`scored`: queries and keys are in FP8. `scaled`: pools are `ScaledHeads`; not both. `dtype` of what is not in FP8."""
        self.rows, self.heads, self.kv_heads = ragged.rows, heads, kv_heads
        group = heads // kv_heads
        self._narrow = replace(NARROW, rows=max(NARROW.rows, triton.next_power_of_2(group)))
        wide = dtype.itemsize == 4
        self._shared, self._slots = SHARED_WIDE if wide else SHARED, None
        hopper = None
        if dim in (64, 128) and not wide and on_hopper(device):
            cut = Cut(HOPPER_ROWS // group, HOPPER_RUN)
            hopper = Long(cut, LONG_SEGMENT[scored], LONG_PREFIX[scored], programs(device), kv_heads)
        if ragged.groups and (scaled or _copying_pays(ragged, hopper)):
            if sum(len(g.slots) for g in ragged.groups) <= COPIED_SHARE * ragged.rows:
                self._slots = torch.cat([g.slots for g in ragged.groups]).to(device, non_blocking=True)
                ragged = _compacted(ragged)
            elif _scattered(ragged).any():
                self._shared, hopper = FINE_WIDE if wide else FINE, None
            elif scaled:
                hopper = None
        shared = Cut(self._shared.rows // group, self._shared.run)
        kernels = Kernels(Cut(OWN.rows // group, OWN.run), shared, hopper)
        self._all = _Tables(plan_all(ragged, kernels), device)
        self._last = _Tables(plan_answers(ragged, kernels), device)

    def attend(self, q, k, v, pool_k: Pool, pool_v: Pool, out: torch.Tensor | Quantised, scoring: Scoring) -> None:
        """Every new token. `q` [rows, heads, dim], `k`, `v` [rows, kv_heads, dim], pools [slots, kv_heads, dim] → `out` like `q`.

        `out` may be `Quantised` by block instead, [rows, heads · dim] with dim 128: one head has one scale. Or it is e4m3 and
        takes 448 times the result, for values that are at most 1 (`values.fold`). The rows may be more than the chunk has tokens;
        those are neither read nor written. `q`, `k` and `pool_k` are in the unit of `scoring`.
        """
        self._run(self._all, q, (k, v), (pool_k, pool_v), out, OWN, scoring)

    def attend_last(self, q, k, v, pool_k: Pool, pool_v: Pool, scoring: Scoring) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim] → like `q`, in the number type of `v`; else as `attend`."""
        out = torch.empty(q.shape, dtype=v.dtype, device=v.device)
        self._run(self._last, q, (k, v), (pool_k, pool_v), out, self._narrow, scoring)
        return out

    def _run(self, tables: "_Tables", q, own, pools, out, plain: Launch, scoring: Scoring) -> None:
        dim = q.shape[-1]
        assert not scoring.bounded or scoring.factor == 1
        assert all(x.stride(1) == dim and x.stride(2) == 1 for x in (q, *own))
        own = [x[: self.rows] for x in own]
        short, long = tables.short, tables.long
        if short.plain:
            self._launch(tables, slice(0, short.plain), q, own, None, out, plain, scoring)
        if self._slots is not None:
            pools = [gathered(pool, self._slots, own[1].dtype) for pool in pools]
        if short.plain < len(short.tiles):
            tiles = slice(short.plain, len(short.tiles))
            self._launch(tables, tiles, q, own, pools, out, self._shared, scoring)
        if len(long.tiles):
            from .gluon_attention import attend_long  # Gluon needs the card

            bounds = (tables.lows, tables.highs)
            # Where pools in FP8 are not copied, no tile of this kernel has a prefix.
            pools = own if isinstance(pools[0], ScaledHeads) else pools
            attend_long(q, own, pools, long, tables.items, bounds, out, _mode(out), scoring)

    def _launch(self, tables: "_Tables", tiles: slice, q, own, pools, out, shape: Launch, scoring: Scoring) -> None:
        """The portable kernel. `pools` None: tiles without a prefix."""
        dim, mode, short = q.shape[-1], _mode(out), tables.short
        assert mode != BY_BLOCK.value or dim == BLOCK
        values, scales = out if mode == BY_BLOCK.value else (out, out)
        own_keys = [_rows(x, shape.keys) for x in own]
        scaled = pools is not None and isinstance(pools[0], ScaledHeads)
        keys = [part for pair in zip(own_keys, own, strict=True) for part in pair]
        if pools:
            pools = pools if scaled else [(pool, pool) for pool in pools]
            keys = [part for pool, of_heads in pools for part in (_rows(pool, shape.run), of_heads)]
        launch(
            attention_kernel, ((tiles.stop - tiles.start) * self.kv_heads,),
            q, q.stride(0), *own_keys, *keys, short.tiles[tiles], tables.lows, tables.highs, short.run_starts, short.run_counts,
            values, values.stride(0), scales, scales.stride(1), scoring.factor,
            GROUP=self.heads // self.kv_heads, KV_HEADS=self.kv_heads, DIM=dim, ROWS=shape.rows, KEYS=shape.keys, RUN=shape.run,
            PREFIX=pools is not None, SCALED=scaled, BOUNDED=scoring.bounded, MODE=mode,
            STAGES=shape.stages, num_warps=shape.warps,
        )  # fmt: skip


class _Tables:
    """A `Plan` on the device, sent in one copy; `short` and `long` are again `TilePlan`s."""

    def __init__(self, plan: Plan, device):
        parts = [plan.lows, plan.highs, plan.items.ravel()]
        for kernel in (plan.short, plan.long):
            parts += [kernel.tiles.ravel(), kernel.run_starts, kernel.run_counts]
        parts = [np.pad(part, (0, -len(part) % 4)) for part in parts]  # 16 bytes
        sent = send(parts, device)
        self.lows, self.highs = sent[:2]
        self.items = sent[2][: plan.items.size].view(plan.items.shape)
        self.short, self.long = (
            TilePlan(tiles.view(-1, kernel.tiles.shape[1]), kernel.plain, starts, counts)
            for kernel, (tiles, starts, counts) in ((plan.short, sent[3:6]), (plan.long, sent[6:9]))
        )


def _copying_pays(ragged: Ragged, hopper: Long | None) -> bool:
    """Whether prefixes, of which there are some, lie in so short runs that copying them together is faster."""
    lengths = np.array([len(g.slots) for g in ragged.groups])
    long = lengths >= hopper.prefix if hopper else np.zeros(len(lengths), bool)
    if (_scattered(ragged) & ~long).any():
        return True
    if not long.any():
        return False
    owner, _, stretch = stretches([g.slots.numpy() for g in ragged.groups])
    runs = np.bincount(owner, -(-stretch // HOPPER_RUN), len(lengths)) - -(-lengths // HOPPER_RUN)
    queries = np.array([ragged.starts[g.last] - ragged.starts[g.first] for g in ragged.groups])
    spared = (runs * -(-queries // hopper.cut.queries))[long].sum()
    return spared * COPIED_IN_A_RUN > lengths.sum()


def _scattered(ragged: Ragged) -> np.ndarray:
    """Which prefixes lie in several runs of neighbouring slots that fill less than half a step on average."""
    owner, _, stretch = stretches([g.slots.numpy() for g in ragged.groups])
    runs = np.bincount(owner, minlength=len(ragged.groups))
    slots = np.bincount(owner, stretch, len(ragged.groups))
    return (runs > 1) & (slots < runs * SHARED.run / 2)


def _compacted(ragged: Ragged) -> Ragged:
    """The same chunk over pools that hold just its prefixes, in order."""
    groups, at = [], 0
    for g in ragged.groups:
        groups.append(PrefixGroup(g.first, g.last, torch.arange(at, at + len(g.slots))))
        at += len(g.slots)
    return Ragged(ragged.starts, groups, ragged.answers)


def _mode(out: torch.Tensor | Quantised) -> int:
    """Of the kernels: how the output is written."""
    if isinstance(out, Quantised):
        return BY_BLOCK.value
    return BOUNDED_VALUES.value if out.dtype == FP8 else PLAIN.value


def _rows(x: torch.Tensor, count: int) -> TensorDescriptor:
    """For loads of one head of `count` rows of `x` [rows, heads, dim] at a time."""
    rows, heads, dim = x.shape
    return TensorDescriptor(x, [rows, heads * dim], [x.stride(0), 1], [count, dim])
