"""One forward pass: segments laid out as packed rows, with everything the layers need to know about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quail_spark.kernels.ragged import PrefixGroup, Ragged
from quail_spark.optimizer.errors import EngineError, RowError

from .kv import KVNode, PagePool

ROW_MULTIPLE = 16  # few distinct row counts: oneDNN compiles a product for each


@dataclass
class Segment:
    """New tokens of one prompt, or of a part of one.

    `tokens` int32 [n], n ≥ 1, continue behind `parent` (its whole ancestor chain) and attend to it. The KV of the
    first `keep` of them is stored in a new node (0: none). `answer`: the head is computed at the last token.
    """

    tokens: np.ndarray
    parent: KVNode | None = None
    keep: int = 0
    answer: bool = True


@dataclass
class Batch:
    """Packed rows, in host memory; a decoder sends them to its device.

    `tokens`, `positions` int32 [rows], filled up to a multiple of ROW_MULTIPLE with rows that nobody attends to.
    `slots` int32 [rows]: the pool slot for the row's K and V, −1 for none; None when nothing is kept. `answer_rows`
    int32 [answers]; `answers[j]`: which answering segment, as given, row j of the logits is for. `nodes`: what each
    given segment keeps.
    """

    tokens: np.ndarray
    positions: np.ndarray
    slots: np.ndarray | None
    answer_rows: np.ndarray
    answers: list[int]
    ragged: Ragged
    nodes: list[KVNode | None]


def check_segments(segments: Sequence[Segment], max_context: int, vocab: int) -> None:
    """Raise EngineError or RowError for a segment that can't be run."""
    for index, segment in enumerate(segments):
        count = len(segment.tokens)
        if count < 1:
            raise EngineError(f"segment {index} has no tokens; accepted: 1 or more")
        if not 0 <= segment.keep <= count:
            raise EngineError(f"segment {index} keeps {segment.keep} of {count} tokens; accepted: 0 to {count}")
        length = count + (segment.parent.length if segment.parent else 0)
        if length > max_context:
            raise RowError(
                f"segment {index}: the prompt has {length} tokens, but the context is {max_context} "
                "(spark.quail.engine.maxContext, or the model's own limit)"
            )
    tokens = np.concatenate([segment.tokens for segment in segments]) if segments else np.zeros(1, np.int32)
    if tokens.min() < 0 or tokens.max() >= vocab:
        _name_bad_tokens(segments, vocab)


def _name_bad_tokens(segments: Sequence[Segment], vocab: int) -> None:
    for index, segment in enumerate(segments):
        least, most = int(segment.tokens.min()), int(segment.tokens.max())
        if least < 0 or most >= vocab:
            raise EngineError(f"segment {index} has token ids {least} to {most}; accepted: 0 to {vocab - 1}")


def pack(segments: Sequence[Segment], pool: PagePool) -> Batch:
    """Lay segments out and take pages for what they keep. On an error no page stays taken."""
    nodes: list[KVNode | None] = [None] * len(segments)
    try:
        for index, segment in enumerate(segments):
            if segment.keep:
                nodes[index] = KVNode(pool, segment.keep, segment.parent)
    except EngineError:
        release(nodes)
        raise
    # What a segment neither keeps nor answers with is not computed.
    used = [len(s.tokens) if s.answer else s.keep for s in segments]
    order = _order(segments, used)
    chosen = [segments[i] for i in order]
    counts = np.array([used[i] for i in order], np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)])
    answers = [place for place, s in enumerate(chosen) if s.answer]
    ordinal = {i: n for n, i in enumerate(i for i, s in enumerate(segments) if s.answer)}
    behind = np.array([s.parent.length if s.parent else 0 for s in chosen], np.int64)
    first = starts[:-1]
    return Batch(
        tokens=_rows([s.tokens[:n] for s, n in zip(chosen, counts.tolist(), strict=True)]),
        positions=_rows([np.arange(starts[-1]) + np.repeat(behind - first, counts)]),
        slots=_slots([(start, nodes[i]) for start, i in zip(first.tolist(), order, strict=True)], int(starts[-1])),
        answer_rows=(starts[1:][answers] - 1).astype(np.int32),
        answers=[ordinal[order[place]] for place in answers],
        ragged=Ragged(starts.tolist(), _groups([s.parent for s in chosen]), answers),
        nodes=nodes,
    )


def release(nodes: Sequence[KVNode | None]) -> None:
    """Drop one reference of each node."""
    for node in nodes:
        if node is not None:
            node.release()


def _order(segments: Sequence[Segment], used: list[int]) -> list[int]:
    """Segments with rows; those behind one parent lie together, short ones first."""
    parents: dict[int, int] = {}
    for segment in segments:
        if segment.parent is not None:
            parents.setdefault(id(segment.parent), len(parents) + 1)
    order = [i for i in range(len(segments)) if used[i]]
    return sorted(order, key=lambda i: (parents.get(id(segments[i].parent), 0), used[i]))


def _groups(parents: list[KVNode | None]) -> list[PrefixGroup]:
    groups, first = [], 0
    for last in range(1, len(parents) + 1):
        if last == len(parents) or parents[last] is not parents[first]:
            if parents[first] is not None:
                groups.append(PrefixGroup(first, last, parents[first].chain_slots()))
            first = last
    return groups


def _slots(placed: list[tuple[int, KVNode | None]], rows: int) -> np.ndarray | None:
    kept = [(start, node) for start, node in placed if node is not None]
    if not kept:
        return None
    slots = np.full(rows + -rows % ROW_MULTIPLE, -1, np.int32)
    for start, node in kept:
        slots[start : start + node.tokens] = node.slots.numpy()
    return slots


def _rows(parts: list[np.ndarray]) -> np.ndarray:
    count = sum(map(len, parts))
    return np.concatenate([*parts, np.zeros(-count % ROW_MULTIPLE)]).astype(np.int32)
