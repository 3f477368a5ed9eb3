"""Texts, answers and errors survive the way through Arrow columns and JSON."""

import math
import random

import numpy as np
import pyarrow as pa
import pytest

from quail_spark.engine import wire
from quail_spark.engine.evaluator import Answers, Counts
from quail_spark.engine.wire import Codec, decode_error, decode_request, encode_error, encode_request
from quail_spark.optimizer import errors
from quail_spark.optimizer.errors import EngineError, QuailError
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate


class Recorder:
    """A session that keeps what it is given."""

    def rows(self, rows):
        self.given = rows

    def pairs(self, anchors, anchor_ids, partners):
        self.given = (anchors, anchor_ids, partners)


def spec(kind="filter", columns=1, partner_columns=0):
    arguments = [Argument(i) for i in range(columns)] + [Argument(i, partner=True) for i in range(partner_columns)]
    template = " ".join(f"{{{i}}}" for i in range(len(arguments))) + "?"
    return OperatorSpec("op", kind, (Predicate(template, tuple(arguments)),))


def through(codec, batch):
    """What a session gets, after the bytes of an Arrow stream."""
    message = codec.encode(batch)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, codec.schema) as writer:
        writer.write_batch(message.data)
    data = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    codec.answer(recorder := Recorder(), data, message.metadata)
    return recorder.given


def text():
    return random.choice([None, "", "plain", "ünïcode 🦜 \0 <|im_end|>", "long " * random.randrange(2000)])


def table(rows, columns):
    return [[text() for _ in range(columns)] for _ in range(rows)]


@pytest.mark.parametrize("columns", [0, 1, 3])
@pytest.mark.parametrize("rows", [0, 1, 50])
def test_rows(rows, columns):
    batch = table(rows, columns)
    assert through(Codec(spec(columns=columns)), batch) == batch


def test_texts_are_valid_arrow():
    values = [text() for _ in range(100)]
    array = wire._texts(values)
    array.validate(full=True)
    assert array.equals(pa.array(values, pa.large_string()))
    assert wire._texts([]).equals(pa.array([], pa.large_string()))


def test_record_batches_of_any_string_type():
    batch = table(20, 1)
    values = [row[0] for row in batch]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        arrow = pa.record_batch([pa.array(values, pa.string()).cast(kind)], names=["a"])
        assert through(Codec(spec()), arrow) == batch
        assert through(Codec(spec()), arrow.slice(3, 5)) == batch[3:8]


def test_only_columns_that_are_referred_to_cross():
    assert through(Codec(spec(columns=1)), [["a", "b"], ["c", "d"]]) == [["a"], ["c"]]


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("partner_columns", [0, 2])
def test_pairs(columns, partner_columns):
    codec = Codec(spec("pairs", columns, partner_columns))
    blocks = [table(size, partner_columns) for size in (0, 1, 30)]
    partners = [random.choice(blocks) for _ in range(12)]
    anchors, ids = table(12, columns), [7, *range(2**40, 2**40 + 11)]
    assert through(codec, (anchors, ids, partners)) == (anchors, ids, partners)
    assert through(codec, ([], [], [])) == ([], [], [])


def test_pairs_as_record_batches():
    codec = Codec(spec("pairs", 1, 1))
    anchors = pa.record_batch({"a": ["x", "y"]})
    block = pa.record_batch({"b": ["1", None]})
    assert through(codec, (anchors, [1, 2], [block, block])) == ([["x"], ["y"]], [1, 2], [[["1"], [None]]] * 2)


def test_a_block_given_for_many_anchors_crosses_once():
    codec = Codec(spec("pairs", 1, 1))
    block = [["x" * 10_000]] * 10
    once = codec.encode(([["a"]], [1], [block])).nbytes
    often = codec.encode(([["a"]] * 100, list(range(100)), [block] * 100)).nbytes
    assert often < once + 100 * 64
    _, _, partners = through(codec, ([["a"]] * 3, [1, 2, 3], [block, [["y"]], block]))
    assert partners[0] is partners[2] and partners[0] is not partners[1]


def test_a_row_with_too_few_columns_is_refused():
    with pytest.raises(QuailError, match=r"'op' refers to column 1; a row of its input has 1 columns"):
        Codec(spec(columns=2)).encode([["a", "b"], ["c"]])
    with pytest.raises(QuailError, match="one id and one block for each anchor"):
        Codec(spec("pairs", 1, 1)).encode(([["a"]], [1, 2], [[]]))


def test_answers():
    codec = Codec(OperatorSpec("op", "answers", (Predicate("a", ()), Predicate("b", ()))))
    codes = np.array([[1, 0], [-1, -2], [-3, 1]], np.int64)
    margins = np.array([[1.5, -2.25], [math.nan, math.nan], [math.nan, math.inf]])
    counts = Counts(rows=3, seconds=np.float64(0.5), asked=[np.int64(1), 2], passed=[1, 1])
    answers = codec.decode_answers(*codec.encode_answers(Answers(codes, margins, [(2, 0, "too löng")], counts)))
    assert answers.codes.dtype == np.int8 and answers.margins.dtype == np.float32
    np.testing.assert_array_equal(answers.codes, codes)
    np.testing.assert_array_equal(answers.margins, margins.astype(np.float32))
    assert answers.errors == [(2, 0, "too löng")]
    assert answers.counts == Counts(rows=3, seconds=0.5, asked=[1, 2], passed=[1, 1])
    answers.codes[0, 0] = 0  # the caller's own
    empty = codec.decode_answers(
        *codec.encode_answers(Answers(np.zeros((0, 2), np.int8), np.zeros((0, 2), np.float32), [], Counts()))
    )
    assert empty.codes.shape == empty.margins.shape == (0, 2)


def test_every_error_class_arrives_as_itself():
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, QuailError)]
    assert len(classes) >= 9
    for kind in classes:
        error = decode_error(encode_error(kind("wörds")))
        assert type(error) is kind and str(error) == "wörds"


def test_other_errors_become_engine_errors():
    error = decode_error(encode_error(ZeroDivisionError("oops")))
    assert type(error) is EngineError and "ZeroDivisionError" in str(error) and "oops" in str(error)
    assert type(decode_error({"kind": "SystemExit", "message": "m"})) is EngineError


def test_requests():
    wanted = spec("pairs", 2, 1)
    assert decode_request(encode_request(wanted)) == wanted
    other = encode_request(wanted).replace(b'"version": 1', b'"version": 999', 1)
    with pytest.raises(EngineError, match="version 999"):
        decode_request(other)


@pytest.mark.parametrize("kinds", [(pa.binary(), pa.string()), (pa.large_binary(), pa.large_string())])
def test_bytes_that_are_no_text(kinds):
    rng = random.Random(7)
    values = [
        rng.choice([None, b"", b"plain", bytes(rng.choices(range(256), k=rng.randint(1, 6)))]) for _ in range(200)
    ]
    column = pa.array(values, kinds[0]).view(kinds[1])
    expected = [None if value is None else value.decode(errors="replace") for value in values]
    assert wire.decoded(column) == expected
    assert wire.decoded(column.slice(50, 20)) == expected[50:70]
