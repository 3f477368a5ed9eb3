"""One forward pass: segments laid out as packed rows, with everything the layers need to know about them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from quail_spark.kernels.attention import Attention
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
    """Packed rows. `order[i]`: which given segment is the i-th of the batch (those behind one parent lie together).

    `tokens`, `positions` int64 [rows] (filled up to a multiple of ROW_MULTIPLE with rows that nobody attends to); `keep_rows` (ascending), `keep_slots` int64 [kept]: rows whose K and V go to which pool
    slots; `answer_rows` int64 [answers]; `answers[j]`: which answering segment, as given, row j of the logits is for.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    keep_rows: torch.Tensor
    keep_slots: torch.Tensor
    answer_rows: torch.Tensor
    answers: list[int]
    attention: Attention
    nodes: list[KVNode | None]

    def kept_in(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the rows in `rows`: which are kept, counted from its start, and their slots."""
        first, last = torch.searchsorted(self.keep_rows, torch.tensor([rows.start, rows.stop])).tolist()
        return self.keep_rows[first:last] - rows.start, self.keep_slots[first:last]


def check_segments(segments: Sequence[Segment], max_context: int, vocab: int) -> None:
    """Raise EngineError or RowError for a segment that can't be run."""
    for index, segment in enumerate(segments):
        count = len(segment.tokens)
        if count < 1:
            raise EngineError(f"segment {index} has no tokens; accepted: 1 or more")
        if not 0 <= segment.keep <= count:
            raise EngineError(f"segment {index} keeps {segment.keep} of {count} tokens; accepted: 0 to {count}")
        least, most = int(np.min(segment.tokens)), int(np.max(segment.tokens))
        if least < 0 or most >= vocab:
            raise EngineError(f"segment {index} has token ids {least} to {most}; accepted: 0 to {vocab - 1}")
        length = count + (segment.parent.length if segment.parent else 0)
        if length > max_context:
            raise RowError(
                f"segment {index}: the prompt has {length} tokens, but the context is {max_context} "
                "(spark.quail.engine.maxContext, or the model's own limit)"
            )


def pack(segments: Sequence[Segment], pool: PagePool, device: torch.device) -> Batch:
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
    parents = {id(s.parent): n for n, s in enumerate(segments, 1) if s.parent is not None}
    order = sorted(
        (i for i in range(len(segments)) if used[i]), key=lambda i: (parents.get(id(segments[i].parent), 0), used[i])
    )
    starts = np.concatenate([[0], np.cumsum([used[i] for i in order])]).astype(np.int64).tolist()
    answers = [place for place, i in enumerate(order) if segments[i].answer]
    ordinal = {i: n for n, i in enumerate(i for i, s in enumerate(segments) if s.answer)}
    ragged = Ragged(starts, _groups([segments[i].parent for i in order]), answers)
    keeping = [(start, nodes[i]) for start, i in zip(starts, order, strict=False) if nodes[i] is not None]
    return Batch(
        tokens=_rows([torch.from_numpy(np.asarray(segments[i].tokens[: used[i]], np.int64)) for i in order], device),
        positions=_rows([_positions(segments[i], used[i]) for i in order], device),
        keep_rows=_join([torch.arange(start, start + node.tokens) for start, node in keeping], device),
        keep_slots=_join([node.slots for _, node in keeping], device),
        answer_rows=torch.tensor([starts[place + 1] - 1 for place in answers], dtype=torch.int64, device=device),
        answers=[ordinal[order[place]] for place in answers],
        attention=Attention(ragged),
        nodes=nodes,
    )


def release(nodes: Sequence[KVNode | None]) -> None:
    """Drop one reference of each node."""
    for node in nodes:
        if node is not None:
            node.release()


def _groups(parents: list[KVNode | None]) -> list[PrefixGroup]:
    groups, first = [], 0
    for last in range(1, len(parents) + 1):
        if last == len(parents) or parents[last] is not parents[first]:
            if parents[first] is not None:
                groups.append(PrefixGroup(first, last, parents[first].chain_slots()))
            first = last
    return groups


def _positions(segment: Segment, count: int) -> torch.Tensor:
    behind = segment.parent.length if segment.parent else 0
    return torch.arange(behind, behind + count)


def _rows(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    count = sum(map(len, parts))
    return _join([*parts, torch.zeros(-count % ROW_MULTIPLE, dtype=torch.int64)], device)


def _join(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    return (torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)).to(device)
