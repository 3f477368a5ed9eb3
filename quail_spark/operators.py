"""What runs in Spark's Python workers: each operator streams Arrow batches to the engine of its device. No torch here."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quail_spark.optimizer.plan import TRUE, OperatorSpec

from .engines import task_engine, task_settings
from .failed_rows import FailedRows
from .packing import cut

Batches = Iterator[pa.RecordBatch]

PAIRS_PER_ROW = 16  # a message holds this many times more pairs of a join than rows of a filter
BLOCKS_KEPT = 256


@dataclass(frozen=True)
class RowColumns:
    """Names of the input columns: `texts` in the order that predicates count, `kept` are passed on."""

    texts: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class PairColumns:
    """Input of a join: anchor columns, and `block` with partner columns as fields of its structs.

    Blocks of one `number` are equal; None: blocks have no numbers, since each anchor chose its partners from them.
    """

    anchor: RowColumns
    partner: RowColumns
    block: str = "block"
    number: str | None = None


def run_filter(spec_json: str, columns: RowColumns, batches: Batches) -> Batches:
    """Keep the rows whose every predicate is TRUE. Executor-side, one call per partition."""
    spec, conf = OperatorSpec.from_json(spec_json), task_settings()[0]
    failed = FailedRows(conf["onError"], spec)
    waiting: deque[pa.RecordBatch] = deque()

    def requests() -> Batches:
        for batch in batches:
            for part in bounded(batch, columns.texts, conf["batch.rows"], conf["batch.bytes"]):
                waiting.append(part)
                yield part.select(list(columns.texts))

    for answers in task_engine().rows(spec, requests()):
        batch = waiting.popleft()
        failed.check(answers, lambda item, p, batch=batch: _text(batch, columns.texts, spec, item, p))
        yield select(batch, columns.kept).filter(pa.array((answers.codes == TRUE).all(axis=1)))
    failed.finish()


def run_blocks(rows: int, size: int, keys: tuple[str, ...], fields: tuple[str, ...], batches: Batches) -> Batches:
    """Pack partner rows into numbered blocks of at most `rows` rows and about `size` bytes of text, one key each.

    Rows come sorted by key. Executor-side, in one task, so that numbers are unique.
    """
    number = 0
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


def run_pairs(spec_json: str, columns: PairColumns, batches: Batches) -> Batches:
    """Inner join: for each (anchor, block of partners) the pairs whose every predicate is TRUE. Executor-side."""
    spec, conf = OperatorSpec.from_json(spec_json), task_settings()[0]
    failed = FailedRows(conf["onError"], spec)
    waiting: deque[Pairs] = deque()
    numbers, blocks = AnchorNumbers(), Blocks(columns)

    def requests() -> Iterator[tuple[pa.RecordBatch, list[int], list[pa.RecordBatch]]]:
        for batch in batches:
            for part in bounded_pairs(batch, columns, PAIRS_PER_ROW * conf["batch.rows"], conf["batch.bytes"]):
                pairs = Pairs(part, columns)
                waiting.append(pairs)
                anchors = part.select(list(columns.anchor.texts))
                yield anchors, numbers.of(anchors), blocks.of(pairs)

    for answers in task_engine().pairs(spec, requests()):
        pairs = waiting.popleft()
        failed.check(answers, lambda item, p, pairs=pairs: pairs.text(spec, item, p))
        yield pairs.select(np.flatnonzero((answers.codes == TRUE).all(axis=1)))
    failed.finish()


class Pairs:
    """One batch of (anchor, block) rows, seen as anchor-major pairs."""

    def __init__(self, batch: pa.RecordBatch, columns: PairColumns):
        self.batch = batch
        self.columns = columns
        blocks = batch.column(columns.block)
        self.partners = pa.RecordBatch.from_struct_array(blocks.flatten())
        self.lengths = pc.list_value_length(blocks).to_numpy(zero_copy_only=False)
        self.ends = np.cumsum(self.lengths)
        self.anchor_of = np.repeat(np.arange(batch.num_rows), self.lengths)

    def block(self, row: int) -> pa.RecordBatch:
        """Texts of one block."""
        length = int(self.lengths[row])
        return self.partners.slice(int(self.ends[row]) - length, length).select(list(self.columns.partner.texts))

    def text(self, spec: OperatorSpec, item: int, predicate: int) -> str | None:
        """The first text that a predicate reads in one pair."""
        argument = spec.predicates[predicate].arguments[spec.predicates[predicate].used[0]]
        if argument.partner:
            return self.partners.column(self.columns.partner.texts[argument.column])[item].as_py()
        return self.batch.column(self.columns.anchor.texts[argument.column])[int(self.anchor_of[item])].as_py()

    def select(self, pairs: np.ndarray) -> pa.RecordBatch:
        """Anchor and partner columns of these pairs."""
        anchor_rows, partner_rows = pa.array(self.anchor_of[pairs]), pa.array(pairs)
        columns = {name: self.batch.column(name).take(anchor_rows) for name in self.columns.anchor.kept}
        columns |= {name: self.partners.column(name).take(partner_rows) for name in self.columns.partner.kept}
        return pa.RecordBatch.from_pydict(columns) if columns else _count(len(pairs))


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
        changes = np.concatenate([[first], _differs_from_previous(anchors.columns, anchors.num_rows)])
        numbers = self._number + np.cumsum(changes)
        self._last, self._number = anchors.slice(anchors.num_rows - 1), int(numbers[-1])
        return numbers.tolist()


class Blocks:
    """Texts of partner blocks, one object per block number: what comes back for every anchor crosses once a batch."""

    def __init__(self, columns: PairColumns):
        self._columns = columns
        self._texts: OrderedDict[int, pa.RecordBatch] = OrderedDict()

    def of(self, pairs: Pairs) -> list[pa.RecordBatch]:
        """One batch of texts per row of `pairs`."""
        if self._columns.number is None:
            return [pairs.block(row) for row in range(pairs.batch.num_rows)]
        found = []
        for row, number in enumerate(pairs.batch.column(self._columns.number).to_pylist()):
            if number not in self._texts:
                self._texts[number] = pairs.block(row)
                if len(self._texts) > BLOCKS_KEPT:
                    self._texts.popitem(last=False)
            found.append(self._texts[number])
        return found


def _text(batch: pa.RecordBatch, names: tuple[str, ...], spec: OperatorSpec, item: int, predicate: int) -> str | None:
    used = spec.predicates[predicate].used
    return batch.column(names[spec.predicates[predicate].arguments[used[0]].column])[item].as_py() if used else ""


def select(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """These columns; without any, a column of TRUE so that the rows still count."""
    if names:
        return batch.select(list(names))
    return _count(batch.num_rows)


def _count(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(np.ones(rows, bool))], names=["n"])


def bounded(batch: pa.RecordBatch, names: tuple[str, ...], rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Slices of at most `rows` rows and about `size` bytes of text (a single row may be larger)."""
    for start, end in cut(_text_bytes(batch, names), rows, size):
        yield batch.slice(start, end - start)


def bounded_pairs(batch: pa.RecordBatch, columns: PairColumns, pairs: int, size: int) -> Iterator[pa.RecordBatch]:
    """Slices of at most `pairs` pairs and about `size` bytes of text (a single block may be larger)."""
    blocks = batch.column(columns.block)
    lengths = pc.list_value_length(blocks).to_numpy(zero_copy_only=False)
    partner_bytes = _text_bytes(pa.RecordBatch.from_struct_array(blocks.flatten()), columns.partner.texts)
    sums = np.concatenate([[0], np.cumsum(partner_bytes)])
    ends = np.cumsum(lengths)
    total = _text_bytes(batch, columns.anchor.texts) + sums[ends] - sums[ends - lengths]
    for start, end in cut(total, pairs, size, counts=lengths):
        yield batch.slice(start, end - start)


def _text_bytes(batch: pa.RecordBatch, names: tuple[str, ...]) -> np.ndarray:
    total = np.zeros(batch.num_rows, np.int64)
    for name in set(names):
        lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
        total += lengths.to_numpy(zero_copy_only=False)
    return total


def block_ends(batch: pa.RecordBatch, rows: int, size: int, keys: tuple[str, ...]) -> np.ndarray:
    """Where each block ends: at a new key, after `rows` rows, or before it grows over `size` bytes."""
    texts = [n for n, t in zip(batch.schema.names, batch.schema.types, strict=True) if pa.types.is_string(t)]
    sizes = _text_bytes(batch, tuple(texts))
    new_key = np.concatenate([[False], _differs_from_previous([batch.column(key) for key in keys], batch.num_rows)])
    return np.array([end for _, end in cut(sizes, rows, size, breaks=new_key)], np.int64)


def _differs_from_previous(columns: list[pa.Array], rows: int) -> np.ndarray:
    """For rows 1, 2, …: whether a column differs from the row before (NULL differs from everything)."""
    differs = np.zeros(max(0, rows - 1), bool)
    for column in columns:
        same = pc.fill_null(pc.equal(column.slice(1), column.slice(0, rows - 1)), False)
        differs |= ~same.to_numpy(zero_copy_only=False)
    return differs
