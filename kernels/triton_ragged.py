"""The GPU counterpart of `attention.Attention`: plans a ragged chunk once and launches its kernels for every layer."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .fp8 import BLOCK, Quantised
from .ragged import PrefixGroup, Ragged
from .triton_attention import attention_kernel
from .triton_plan import TilePlan, plan_all, plan_answers


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
NARROW = Launch(rows=16, keys=64, run=64, warps=4, stages=2)
HOPPER_ROWS, HOPPER_RUN = 128, 128  # of `gluon_prefix`
LONG_PREFIX = 512  # tokens: from here on the Hopper kernel pays
COPIED_SHARE = 8  # prefix tokens for each new one: up to here scattered prefixes are copied together, each layer


def can_attend(heads: int, kv_heads: int, head_dim: int) -> bool:
    """Whether these kernels serve the shape; the reference serves all."""
    return head_dim in (16, 32, 64, 128) and heads % kv_heads == 0 and heads // kv_heads <= OWN.rows


def scores_are_bounded(q_norm: torch.Tensor, k_norm: torch.Tensor) -> bool:
    """Whether head norms (float32 [head_dim] each) keep every score so small that softmax needs no running maximum.

    After the norm |q| ≤ √dim · max|w|, so |q·k| / √dim ≤ √dim · max|w_q| · max|w_k|; 2 to that power, summed over
    a context, must stay a float32.
    """
    bound = math.sqrt(q_norm.numel()) * q_norm.abs().max() * k_norm.abs().max() * math.log2(math.e)
    return bool(bound < 100)


class TritonAttention:
    """The plan of one chunk on `device`, used by every layer: the interface and the results of `attention.Attention`."""

    def __init__(self, ragged: Ragged, heads: int, kv_heads: int, dim: int, device, bounded: bool = False):
        """`bounded`: what `scores_are_bounded` said of every layer."""
        self.rows, self.heads, self.kv_heads, self.bounded = ragged.rows, heads, kv_heads, bounded
        copied = sum(len(g.slots) for g in ragged.groups) <= COPIED_SHARE * ragged.rows
        self.long = _long_prefixes(ragged, dim, device) and (copied or not _scattered(ragged, LONG_PREFIX))
        self._shared = OWN if self.long else SHARED
        group = heads // kv_heads
        self._narrow = replace(NARROW, rows=max(NARROW.rows, triton.next_power_of_2(group)))
        self._slots = None
        if _scattered(ragged, LONG_PREFIX if self.long else SHARED.run / 2):
            if copied:
                self._slots = torch.cat([g.slots for g in ragged.groups]).to(device, non_blocking=True)
                ragged = _compacted(ragged)
            else:
                self._shared = FINE
        self._all, self._last = self._tables(ragged, group, device)

    def _tables(self, ragged: Ragged, group: int, device) -> list["_Tables"]:
        """For all tokens and for answers: what the portable kernel does, and for long prefixes what the Hopper kernel does before."""
        rest, prefix = _without_full_runs(ragged, HOPPER_RUN) if self.long else ragged, [None, None]
        tiles = (OWN.rows // group, self._shared.rows // group)
        if self.long:
            most = HOPPER_ROWS // group
            prefix = [plan_all(ragged, (most, most), HOPPER_RUN), plan_answers(ragged, most, HOPPER_RUN)]
        own = [plan_all(rest, tiles, self._shared.run), plan_answers(rest, tiles[1], self._shared.run)]
        return [
            _Tables(plan, device, _Tables(before, device) if before else None)
            for plan, before in zip(own, prefix, strict=True)
        ]

    def attend(
        self, qkv: torch.Tensor, heads: int, pool_k: torch.Tensor, pool_v: torch.Tensor, out: torch.Tensor | Quantised
    ) -> None:
        """Every new token. `qkv` [rows, heads + 2·kv_heads, dim], pools [slots, kv_heads, dim] → `out` [rows, heads, dim].

        `out` may be `Quantised` by block instead, [rows, heads · dim] with dim 128: one head has one scale. `qkv` and
        `out` may have more rows than the chunk has tokens; those are neither read nor written.
        """
        self._run(self._all, qkv[:, :heads], qkv[:, heads:], pool_k, pool_v, out, OWN)

    def attend_last(
        self, q: torch.Tensor, kv: torch.Tensor, pool_k: torch.Tensor, pool_v: torch.Tensor
    ) -> torch.Tensor:
        """The last token of each answering segment: `q` [answers, heads, dim], `kv` [rows, 2·kv_heads, dim] → like `q`."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self._run(self._last, q, kv, pool_k, pool_v, out, self._narrow)
        return out

    def _run(self, tables: "_Tables", q, own, pool_k, pool_v, out, plain: Launch) -> None:
        dim = q.shape[-1]
        assert q.stride(1) == own.stride(1) == dim and q.stride(2) == own.stride(2) == 1
        own = torch.as_strided(own, (self.rows, 2 * self.kv_heads * dim), (own.stride(0), 1))
        if tables.plain:
            self._launch(tables, slice(0, tables.plain), q, own, None, None, out, plain)
        if tables.plain < tables.count:
            if self._slots is not None:
                pool_k, pool_v = (pool.index_select(0, self._slots) for pool in (pool_k, pool_v))
            part, tiles = None, slice(tables.plain, tables.count)
            if tables.before:
                from .gluon_prefix import attend_prefix  # Gluon needs the card

                before = tables.before
                part = attend_prefix(
                    q, pool_k, pool_v, before.tiles[before.plain :], before.run_starts, _factor(dim), self.bounded
                )
            self._launch(tables, tiles, q, own, (pool_k, pool_v), part, out, self._shared)

    def _launch(self, tables: "_Tables", tiles: slice, q, own, pools, part, out, launch: Launch) -> None:
        """`pools` None: tiles without a prefix. `part`: what the full runs of the prefixes gave."""
        dim, by_block = q.shape[-1], isinstance(out, Quantised)
        assert not by_block or dim == BLOCK
        values, scales = out if by_block else (out, out)
        own_keys = TensorDescriptor(own, own.shape, own.stride(), [launch.keys, dim])
        keys = (
            [TensorDescriptor.from_tensor(pool.flatten(1), [launch.run, dim]) for pool in pools]
            if pools
            else [own_keys] * 2
        )
        before, lse = part or (q, q)
        attention_kernel[((tiles.stop - tiles.start) * self.kv_heads,)](
            q, q.stride(0), own_keys, *keys, tables.tiles[tiles], tables.lows, tables.highs, tables.run_starts, tables.run_counts, before, lse,
            values, values.stride(0), scales, scales.stride(1) if by_block else 0, _factor(dim),
            GROUP=self.heads // self.kv_heads, KV_HEADS=self.kv_heads, DIM=dim, ROWS=launch.rows, KEYS=launch.keys, RUN=launch.run,
            PREFIX=pools is not None, CONTINUED=part is not None, BOUNDED=self.bounded, MODE=int(by_block),
            STAGES=launch.stages, num_warps=launch.warps,
        )  # fmt: skip


class _Tables:
    """A `TilePlan` on the device, sent in one copy. `before`: tables of the kernel that goes first."""

    def __init__(self, plan: TilePlan, device, before: "_Tables | None" = None):
        self.before = before
        parts = [plan.tiles.ravel(), plan.lows, plan.highs, plan.run_starts, plan.run_counts]
        parts = [np.pad(part, (0, -len(part) % 4)) for part in parts]  # 16 bytes
        packed = torch.from_numpy(np.concatenate(parts))
        if torch.device(device).type == "cuda":
            packed = packed.pin_memory()
        sent = packed.to(device, non_blocking=True).split([len(part) for part in parts])
        self.plain, self.count = plan.plain, len(plan.tiles)
        self.tiles = sent[0].view(-1, plan.tiles.shape[1])
        self.lows, self.highs, self.run_starts, self.run_counts = sent[1:]


def _long_prefixes(ragged: Ragged, dim: int, device) -> bool:
    """Whether the Hopper kernel takes the prefixes: all are long."""
    return (
        torch.device(device).type == "cuda"
        and torch.cuda.get_device_capability(device) == (9, 0)
        and dim in (64, 128)
        and bool(ragged.groups)
        and min(len(g.slots) for g in ragged.groups) >= LONG_PREFIX
    )


def _without_full_runs(ragged: Ragged, run: int) -> Ragged:
    """What remains of each prefix behind its runs of `run` neighbouring slots."""
    groups = []
    for g in ragged.groups:
        pieces = g.slots.tensor_split((g.slots.diff() != 1).nonzero().flatten() + 1)
        groups.append(PrefixGroup(g.first, g.last, torch.cat([piece[len(piece) // run * run :] for piece in pieces])))
    return Ragged(ragged.starts, groups, ragged.answers)


def _scattered(ragged: Ragged, least: float) -> bool:
    """Whether some prefix lies in several runs of neighbouring slots that are shorter than `least` on average."""
    runs = [(len(g.slots), 1 + int((g.slots.diff() != 1).sum())) for g in ragged.groups]
    return any(count > 1 and length / count < least for length, count in runs)


def _compacted(ragged: Ragged) -> Ragged:
    """The same chunk over pools that hold just its prefixes, in order."""
    groups, at = [], 0
    for g in ragged.groups:
        groups.append(PrefixGroup(g.first, g.last, torch.arange(at, at + len(g.slots))))
        at += len(g.slots)
    return Ragged(ragged.starts, groups, ragged.answers)


def _factor(dim: int) -> float:
    """Softmax scale for powers of 2."""
    return math.log2(math.e) / math.sqrt(dim)
