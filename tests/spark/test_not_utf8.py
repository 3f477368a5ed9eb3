"""Strings of Spark that hold bytes which are no UTF-8: read with U+FFFD in their place, and passed on as they are."""

import pytest
from pyspark.errors import PythonException

from .oracle import answer

BYTES = {1: b"caf\xe9 au lait", 2: b"plain", 3: None, 4: b"\xff\xfe", 5: "caf\u00e9".encode() + b"\xe2\x82", 6: b""}
TEXTS = {key: None if value is None else value.decode(errors="replace") for key, value in BYTES.items()}


@pytest.fixture
def raw(spark, tmp_path):
    rows = [(key, None if value is None else bytearray(value)) for key, value in BYTES.items()]
    frame = spark.createDataFrame(rows, "id int, b binary").selectExpr("id", "CAST(b AS STRING) AS s")
    frame.write.parquet(str(tmp_path / "raw"))
    spark.read.parquet(str(tmp_path / "raw")).createOrReplaceTempView("raw")
    return spark


def test_filters(raw):
    got = raw.sql("SELECT id, CAST(s AS BINARY) AS b FROM raw WHERE AI.IF(PROMPT('{s} is it?'))").collect()
    assert {row.id: bytes(row.b) for row in got} == {
        key: BYTES[key] for key, text in TEXTS.items() if answer("{0} is it?", text)
    }


@pytest.mark.parametrize("kind", ["JOIN", "LEFT JOIN"])
def test_joins(raw, kind):
    got = raw.sql(
        f"SELECT x.id, y.id, CAST(y.s AS BINARY) FROM raw x {kind} raw y ON AI.IF(PROMPT('{{x.s}} is {{y.s}}'))"
    )
    hits = {i: [j for j in TEXTS if answer("{0} is {1}", TEXTS[i], TEXTS[j])] for i in TEXTS}
    expected = {(i, j, BYTES[j]) for i, found in hits.items() for j in found}
    if kind == "LEFT JOIN":
        expected |= {(i, None, None) for i, found in hits.items() if not found}
    assert {(i, j, None if b is None else bytes(b)) for i, j, b in got.collect()} == expected


def test_exists(raw):
    got = raw.sql("SELECT id FROM raw x WHERE NOT EXISTS (SELECT 1 FROM raw y WHERE AI.IF(PROMPT('{x.s} was {y.s}')))")
    assert {row.id for row in got.collect()} == {
        i for i in TEXTS if not any(answer("{0} was {1}", TEXTS[i], TEXTS[j]) for j in TEXTS)
    }


def test_the_error_for_a_row_shows_its_text(raw):
    raw.conf.set("spark.quail.model", "scripted://hash?rate=0.5&seed=7&fail_containing=au lait")
    for sql in (
        "SELECT id FROM raw WHERE AI.IF(PROMPT('{s} is it?'))",
        "SELECT 1 FROM raw x JOIN raw y ON AI.IF(PROMPT('{x.s} is {y.s}'))",
    ):
        with pytest.raises(PythonException, match="told to fail") as caught:
            raw.sql(sql).collect()
        assert "UnicodeDecodeError" not in str(caught.value)


def test_as_a_udf_the_call_says_what_to_write(raw):
    sql = "SELECT id, AI.IF(PROMPT('{{0}} is it?', {})) AS a FROM raw"
    with pytest.raises(PythonException, match=r"not valid UTF-8 .*accepted where .*make_valid_utf8\(column\)"):
        raw.sql(sql.format("s")).collect()
    got = raw.sql(sql.format("make_valid_utf8(s)")).collect()
    assert {row.id: row.a for row in got} == {key: answer("{0} is it?", text) for key, text in TEXTS.items()}
