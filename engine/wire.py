"""What crosses the socket: a request, batches of texts, answers, errors. Arrow columns and JSON; nothing executable.

A stream is one Arrow Flight `do_exchange`. Its descriptor carries `{"version", "spec"}`. Each message of the client is
a record batch of one row in which every column is a list, so that columns of different lengths share a message:

* `a0`, `a1`, …  list<text>  a column of the rows, or of the anchors
* pairs only: `anchor_id` list<int64> and `block` list<int32>, one entry per anchor: its id, the index of its block
* pairs only: `size` list<int32>, one entry per distinct block: its number of partners
* pairs only: `p0`, `p1`, … list<text>  a column of the partners, all distinct blocks one after the other

with `{"items"}` (rows or anchors) as its metadata. A block given for several anchors (the same object) crosses once.
Each answer is a record batch of `codes` int8 and `margins` float32, items × predicates flattened by rows, with
`{"items", "counts", "errors"}` as its metadata; or metadata `{"error": {"kind", "message"}}` alone, which ends the stream.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
from pyarrow import flight

from quail_spark.optimizer import errors as quail_errors
from quail_spark.optimizer.errors import EngineError, QuailError
from quail_spark.optimizer.plan import OperatorSpec

from .evaluator import Answers, Counts, Session, Texts

VERSION = 1
ANSWERS = pa.schema([("codes", pa.int8()), ("margins", pa.float32())])

TextBatch = Texts | pa.RecordBatch  # rows of texts, or the same as Arrow columns (string types)
PairBatch = tuple[TextBatch, Sequence[int], Sequence[TextBatch]]  # anchors, their ids, the block of each

# What Arrow Flight raises when the other end is gone (Arrow's I/O errors are OSError).
TRANSPORT_ERRORS = (pa.ArrowException, flight.FlightError, OSError)

_TEXT = pa.large_string()
_ERRORS = {name: value for name, value in vars(quail_errors).items() if isinstance(value, type)}


@dataclass(frozen=True)
class Message:
    """A batch, ready to be sent (again)."""

    data: pa.RecordBatch
    metadata: bytes
    items: int

    @property
    def nbytes(self) -> int:
        """Size of its columns."""
        return self.data.nbytes


def encode_request(spec: OperatorSpec) -> bytes:
    """The descriptor of a stream."""
    return json.dumps({"version": VERSION, "spec": spec.to_json()}).encode()


def decode_request(descriptor: bytes) -> OperatorSpec:
    """Inverse of `encode_request`. Raises EngineError when client and engine are of different versions."""
    request = json.loads(descriptor)
    if request.get("version") != VERSION:
        raise EngineError(
            f"the client speaks version {request.get('version')} of the engine's protocol; accepted: {VERSION}. "
            "Is quail-spark of the same version in all of Spark's processes?"
        )
    return OperatorSpec.from_json(request["spec"])


class Codec:
    """Turns the batches of one operator into messages and back. Columns up to the last one that it refers to cross."""

    def __init__(self, spec: OperatorSpec):
        self._name, self._pairs, self._predicates = spec.name, spec.kind == "pairs", len(spec.predicates)
        self._width, self._partner_width = _width(spec, partner=False), _width(spec, partner=True)
        texts = [(f"a{i}", pa.large_list(_TEXT)) for i in range(self._width)]
        numbers = [("anchor_id", pa.int64()), ("block", pa.int32()), ("size", pa.int32())]
        lists = [(name, pa.large_list(kind)) for name, kind in numbers]
        partners = [(f"p{i}", pa.large_list(_TEXT)) for i in range(self._partner_width)]
        self.schema = pa.schema(texts + lists + partners if self._pairs else texts)

    def encode(self, batch: TextBatch | PairBatch) -> Message:
        """Raises QuailError when a row has fewer columns than the operator refers to."""
        columns = self._pair_columns(*batch) if self._pairs else self._text_columns(batch, self._width)
        items = len(batch[0]) if self._pairs else len(batch)
        lists = [pa.LargeListArray.from_arrays(_array([0, len(values)], np.int64), values) for values in columns]
        data = pa.RecordBatch.from_arrays(lists, schema=self.schema)
        return Message(data, json.dumps({"items": items}).encode(), items)

    def answer(self, session: Session, data: pa.RecordBatch, metadata: bytes) -> Answers:
        """Engine-side: decode a message and have `session` answer it."""
        items = json.loads(metadata)["items"]
        columns = [column.values for column in data.columns]
        texts = _rows(columns[: self._width], items)
        if not self._pairs:
            return session.rows(texts)
        anchor_ids, block, size = (_numbers(column).tolist() for column in columns[self._width : self._width + 3])
        partners = _rows(columns[self._width + 3 :], sum(size))
        blocks = [partners[start:end] for start, end in pairwise(accumulate(size, initial=0))]
        return session.pairs(texts, anchor_ids, [blocks[index] for index in block])

    def encode_answers(self, answers: Answers) -> tuple[pa.RecordBatch, bytes]:
        """Record batch and metadata."""
        codes, margins = _array(answers.codes, np.int8), _array(answers.margins, np.float32)
        facts = {"items": len(answers.codes), "counts": asdict(answers.counts), "errors": answers.errors}
        return pa.RecordBatch.from_arrays([codes, margins], schema=ANSWERS), json.dumps(facts, default=_plain).encode()

    def decode_answers(self, data: pa.RecordBatch | None, metadata: bytes) -> Answers:
        """Inverse of `encode_answers`; an error that was sent instead is raised."""
        facts = json.loads(metadata)
        if "error" in facts:
            raise decode_error(facts["error"])
        shape = (facts["items"], self._predicates)
        codes, margins = (_numbers(column).reshape(shape) for column in data.columns)
        return Answers(codes, margins, [tuple(error) for error in facts["errors"]], Counts(**facts["counts"]))

    def _pair_columns(self, anchors: TextBatch, anchor_ids: Sequence[int], partners: Sequence[TextBatch]) -> list:
        if not len(anchors) == len(anchor_ids) == len(partners):
            raise QuailError(
                f"operator {self._name!r} got {len(anchors)} anchors, {len(anchor_ids)} anchor ids and {len(partners)} "
                "blocks of partners; accepted: one id and one block for each anchor"
            )
        distinct = {id(block): block for block in partners}
        places = {key: place for place, key in enumerate(distinct)}
        blocks = list(distinct.values())
        by_block = [self._text_columns(block, self._partner_width) for block in blocks]
        return [
            *self._text_columns(anchors, self._width),
            _array(anchor_ids, np.int64),
            _array([places[id(block)] for block in partners], np.int32),
            _array([len(block) for block in blocks], np.int32),
            *(_concatenated([columns[i] for columns in by_block]) for i in range(self._partner_width)),
        ]

    def _text_columns(self, batch: TextBatch, width: int) -> list[pa.Array]:
        if isinstance(batch, pa.RecordBatch):
            got, columns = batch.num_columns, [column.cast(_TEXT) for column in batch.columns[:width]]
        else:
            got = min((len(row) for row in batch), default=width)
            columns = [_texts([row[i] for row in batch]) for i in range(min(got, width))]
        if got < width:
            raise QuailError(
                f"operator {self._name!r} refers to column {width - 1}; a row of its input has {got} columns"
            )
        return columns


def encode_error(error: Exception) -> dict:
    """JSON-serialisable. What is not a QuailError becomes an EngineError that names its type."""
    if isinstance(error, QuailError) and type(error).__name__ in _ERRORS:
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": "EngineError", "message": f"unexpected {type(error).__name__} in the engine: {error}"}


def decode_error(raw: dict) -> QuailError:
    """The same exception again."""
    return _ERRORS.get(raw["kind"], EngineError)(raw["message"])


def encode_json(value) -> bytes:
    """JSON of plain values and numpy numbers; anything else becomes its text."""
    return json.dumps(value, default=_plain).encode()


def _plain(value):
    return value.item() if isinstance(value, np.generic) else str(value)


def _width(spec: OperatorSpec, partner: bool) -> int:
    columns = (a.column for p in spec.predicates for a in p.arguments if a.partner == partner)
    return 1 + max(columns, default=-1)


def _rows(columns: list[pa.Array], count: int) -> Texts:
    if not columns:
        return [[] for _ in range(count)]
    return list(map(list, zip(*map(decoded, columns), strict=True)))


def decoded(column: pa.Array) -> list[str | None]:
    """The texts of an Arrow array; bytes that are no UTF-8, which a Spark string may hold, become U+FFFD."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode(errors="replace") for value in raw]


def _texts(values: list[str | None]) -> pa.Array:
    """Texts as an Arrow array; unlike `pa.array` it does not import pandas, which takes a new Spark worker a second."""
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(values)), out=offsets[1:])
    valid = np.packbits([value is not None for value in values], bitorder="little") if None in values else None
    buffers = [None if part is None else pa.py_buffer(part) for part in (valid, offsets, b"".join(encoded))]
    return pa.Array.from_buffers(_TEXT, len(values), buffers)


def _array(values, dtype: type) -> pa.Array:
    """Numbers as an Arrow array, without pandas too."""
    flat = np.ascontiguousarray(values, dtype).reshape(-1)
    return pa.Array.from_buffers(pa.from_numpy_dtype(dtype), len(flat), [None, pa.py_buffer(flat)])


def _numbers(array: pa.Array) -> np.ndarray:
    """Inverse of `_array`; a copy."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize).copy()


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays(arrays) if arrays else _texts([])
