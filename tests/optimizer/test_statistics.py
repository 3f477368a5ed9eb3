"""Statistics of tables from what Spark knows, in order of trust, and pass rates."""

import random

import pytest

from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate
from quail_spark.optimizer.statistics import (
    DEFAULT_TOKENS,
    MOST_SAMPLED,
    Number,
    PassRates,
    pass_rate,
    sampled_text,
    table_stats,
)

UNKNOWN = 2**63 - 1  # Spark's sizeInBytes for a frame made in Python


def test_a_sample_beats_column_statistics_beats_the_size():
    given = {"rows": 100, "total_bytes": 100 * 4000}
    assert table_stats(["body"], **given).text("body").tokens == Number(1000, "size / rows")
    given["average_bytes"] = {"body": 800.0}
    assert table_stats(["body"], **given).text("body").tokens == Number(200, "column statistics")
    given["samples"] = {"body": ["x" * 40, None, "y" * 80]}
    assert table_stats(["body"], **given).text("body").tokens == Number(15, "sample of 2")


def test_columns_without_statistics_share_what_the_others_leave():
    stats = table_stats(["a", "b", "c"], rows=10, total_bytes=10 * 1000, average_bytes={"a": 200.0})
    assert [stats.text(c).tokens.value for c in "abc"] == [50, 100, 100]


def test_rows_from_the_plan_or_from_bytes_or_assumed():
    assert table_stats(["t"], rows=7).rows == Number(7, "table statistics")
    assert table_stats(["t"], rows=0).rows.value == 0
    sized = table_stats(["t"], total_bytes=8000, average_bytes={"t": 80.0})
    assert sized.rows == Number(100, "size / text length")
    nothing = table_stats(["t"], total_bytes=UNKNOWN)
    assert nothing.rows.source == "assumed"
    assert nothing.text("t").tokens == Number(DEFAULT_TOKENS, "assumed")
    assert nothing.text("another").tokens.source == "assumed"


def test_moments_of_a_sample():
    rng = random.Random(4)
    texts = ["w" * rng.randint(1, 400) for _ in range(MOST_SAMPLED + 500)]
    stats = sampled_text(texts, count=len)
    lengths = [len(text) for text in texts[:MOST_SAMPLED]]
    assert stats.tokens.value == pytest.approx(sum(lengths) / len(lengths))
    assert stats.length.square == pytest.approx(sum(n * n for n in lengths) / len(lengths))
    assert sampled_text([None, ""]) is None
    assert sampled_text(["äöü"]).tokens.value == 1.5


def test_pass_rates_know_their_source():
    assert pass_rate(None) == Number(0.2, "assumed")
    assert pass_rate(0.7) == Number(0.7, "hint")
    assert pass_rate(0.5, asked=80, passed=0) == Number(0.1, "80 answers before")
    history, spec = PassRates(), OperatorSpec("f", "filter", (Predicate("{0}?", (Argument(0),)),))
    assert history.numbers(spec) == [Number(0.2, "assumed")]
    history.observe(spec, [1980], [996])
    assert history.numbers(spec) == [Number(0.5, "1,980 answers before")]
    assert str(Number(12345.678, "hint")) == "12,345.7 (hint)"


def test_a_sample_tells_how_much_texts_begin_alike():
    rng = random.Random()
    growing, text = [], ""
    for _ in range(20):
        text += "".join(rng.choices("abcdefgh", k=100))
        growing.append(text)
    rng.shuffle(growing)
    found = sampled_text(growing, len)
    assert found.shared == pytest.approx(sum(range(100, 2000, 100)) / sum(range(100, 2100, 100)), abs=1e-3)
    assert found.length.mean - found.length.shared == pytest.approx(100, abs=2)
    assert sampled_text(["".join(rng.choices("abcdefgh", k=200)) for _ in range(50)]).shared == 0
    assert table_stats(["t"], 20, average_bytes={"t": 80}).text("t").shared == 0
