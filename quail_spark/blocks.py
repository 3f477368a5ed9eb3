"""Partner blocks: packed in one operator, read in another that meets them with anchors. Executor-side."""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quail_spark.engine.wire import decoded
from quail_spark.optimizer.plan import OperatorSpec

from .operators import Batches, RowColumns, count, differs_from_previous, text_bytes, texts
from .packing import cut

BLOCKS_KEPT = 256
TASK_BITS = 40  # a block's number is the task's, shifted by so much, plus the block's within the task


@dataclass(frozen=True)
class PairColumns:
    """Input of an AI join: anchor columns, and `block` with partner columns as fields of its structs (NULL: no partner).

    Blocks of one `number` are equal; None: blocks have no numbers, since each anchor chose its partners from them.
    `run` is one number for all rows of an anchor, which are adjacent. `kind` is one of join_kinds.KINDS.
    """

    anchor: RowColumns
    partner: RowColumns
    kind: str = "inner"
    block: str = "block"
    number: str | None = None
    run: str = "run"


def run_blocks(rows: int, size: int, keys: tuple[str, ...], fields: tuple[str, ...], batches: Batches) -> Batches:
    """Pack partner rows into numbered blocks of at most `rows` rows and about `size` bytes of text, one key each.

    Rows come sorted by key, all rows of a key to one task.
    """
    from pyspark import TaskContext

    number = TaskContext.get().partitionId() << TASK_BITS
    for batch in batches:
        if not batch.num_rows:
            continue
        ends = block_ends(batch, rows, size, keys)
        starts = np.concatenate([[0], ends[:-1]])
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        structs = pa.StructArray.from_arrays([batch.column(f) for f in fields], names=list(fields))
        block = pa.ListArray.from_arrays(offsets, structs)
        numbers = pa.array(np.arange(number, number + len(ends)))
        columns = [batch.column(key).take(pa.array(starts)) for key in keys]
        yield pa.RecordBatch.from_arrays([*columns, block, numbers], names=[*keys, "block", "number"])
        number += len(ends)


def block_ends(batch: pa.RecordBatch, rows: int, size: int, keys: tuple[str, ...]) -> np.ndarray:
    """Where each block ends: at a new key, after `rows` rows, or before it grows over `size` bytes."""
    strings = [n for n, t in zip(batch.schema.names, batch.schema.types, strict=True) if pa.types.is_string(t)]
    sizes = text_bytes(batch, tuple(strings))
    new_key = np.concatenate([[False], differs_from_previous([batch.column(key) for key in keys], batch.num_rows)])
    return np.array([end for _, end in cut(sizes, rows, size, breaks=new_key)], np.int64)


class Pairs:
    """One batch of (anchor, block) rows, seen as anchor-major pairs."""

    def __init__(self, batch: pa.RecordBatch, columns: PairColumns):
        self.batch = batch
        self.columns = columns
        self.lengths, self.partners = _partners(batch, columns)
        self.ends = np.cumsum(self.lengths)
        self.anchor_of = np.repeat(np.arange(batch.num_rows), self.lengths)

    def block(self, row: int) -> pa.RecordBatch:
        """One block."""
        length = int(self.lengths[row])
        return self.partners.slice(int(self.ends[row]) - length, length)

    def text(self, spec: OperatorSpec, item: int, predicate: int) -> str | None:
        """The first text that a predicate reads in one pair."""
        return first_text(spec, predicate, self.columns, (self.batch, int(self.anchor_of[item])), (self.partners, item))

    def by_row(self, pairs: np.ndarray) -> np.ndarray:
        """How many of these pairs (bool [pairs]) each row has; int [rows]."""
        return np.bincount(self.anchor_of[pairs], minlength=self.batch.num_rows)

    def select(self, pairs: np.ndarray) -> pa.RecordBatch:
        """Anchor and partner columns of these pairs (their indices)."""
        anchor_rows, partner_rows = pa.array(self.anchor_of[pairs]), pa.array(pairs)
        columns = {name: self.batch.column(name).take(anchor_rows) for name in self.columns.anchor.kept}
        columns |= {name: self.partners.column(name).take(partner_rows) for name in self.columns.partner.kept}
        return pa.RecordBatch.from_pydict(columns) if columns else count(len(pairs))


def first_text(spec: OperatorSpec, predicate: int, columns: PairColumns, anchor: tuple, partner: tuple) -> str | None:
    """The first text that a predicate reads of an anchor and a partner, each given as (batch, row)."""
    used = spec.predicates[predicate].used
    if not used:
        return ""
    argument = spec.predicates[predicate].arguments[used[0]]
    (batch, row), names = (partner, columns.partner.texts) if argument.partner else (anchor, columns.anchor.texts)
    return decoded(batch.column(names[argument.column]).slice(row, 1))[0]


def bounded_pairs(batch: pa.RecordBatch, columns: PairColumns, pairs: int, size: int) -> Batches:
    """Slices of at most `pairs` pairs and about `size` bytes of text (a single block may be larger)."""
    lengths, partners = _partners(batch, columns)
    sums = np.concatenate([[0], np.cumsum(text_bytes(partners, columns.partner.texts))])
    ends = np.cumsum(lengths)
    total = text_bytes(batch, columns.anchor.texts) + sums[ends] - sums[ends - lengths]
    for start, end in cut(total, pairs, size, counts=lengths):
        yield batch.slice(start, end - start)


def _partners(batch: pa.RecordBatch, columns: PairColumns) -> tuple[np.ndarray, pa.RecordBatch]:
    """How many partners each row has, and all of them one after the other."""
    blocks = batch.column(columns.block)
    lengths = pc.fill_null(pc.list_value_length(blocks), 0).to_numpy(zero_copy_only=False)
    return lengths, pa.RecordBatch.from_struct_array(blocks.flatten())


class AnchorNumbers:
    """Numbers anchors in order; equal adjacent texts are one anchor, also across batches."""

    def __init__(self):
        self._last: pa.RecordBatch | None = None
        self._number = 0

    def of(self, anchors: pa.RecordBatch) -> list[int]:
        """One number per row."""
        if not anchors.num_rows:
            return []
        first = self._last is None or not self._last.equals(anchors.slice(0, 1))
        changes = np.concatenate([[first], differs_from_previous(anchors.columns, anchors.num_rows)])
        numbers = self._number + np.cumsum(changes)
        self._last, self._number = anchors.slice(anchors.num_rows - 1), int(numbers[-1])
        return numbers.tolist()


class Blocks:
    """Partner blocks, one object per block number: what comes back for every anchor crosses once a message.

    Holds copies of the texts, so that no input batch is kept alive.
    """

    def __init__(self, columns: PairColumns):
        self._columns = columns
        self._texts: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def of(self, pairs: Pairs) -> list:
        """The texts of each row's block, as the engine's client takes them."""
        names = self._columns.partner.texts
        if self._columns.number is None:
            return [texts(pairs.block(row), names) for row in range(pairs.batch.num_rows)]
        found = []
        for row, number in enumerate(pairs.batch.column(self._columns.number).to_pylist()):
            if number not in self._texts:
                block = pairs.block(row)
                self._texts[number] = texts(block.take(pa.array(np.arange(block.num_rows))), names)
                if len(self._texts) > BLOCKS_KEPT:
                    self._texts.popitem(last=False)
            found.append(self._texts[number])
        return found
