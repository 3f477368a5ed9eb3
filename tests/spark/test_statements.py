"""Statements around AI joins and filters: views, tables, cached frames, windows over joins."""

import pytest

from .engine_calls import calls
from .oracle import answer

MAILS = [(1, "late", "a"), (2, "refund", "b"), (3, None, "a"), (4, "thanks", "b")]
TOPICS = [(1, "delivery"), (2, "money"), (3, None)]
ON = "AI.IF(PROMPT('{{m.text}} about {{t.name}} {tag}'))"


@pytest.fixture
def tables(spark):
    spark.createDataFrame(MAILS, "id int, text string, grp string").createOrReplaceTempView("mails")
    spark.createDataFrame(TOPICS, "id int, name string").createOrReplaceTempView("topics")
    return spark


def left_join(tag):
    template = "{0} about {1} " + tag
    rows = []
    for m in MAILS:
        hits = [t[0] for t in TOPICS if answer(template, m[1], t[1])]
        rows += [(m[0], t) for t in hits or [None]]
    return sorted(rows, key=repr)


def sql(tag):
    return f"SELECT m.id AS m, t.id AS t FROM mails m LEFT JOIN topics t ON {ON.format(tag=tag)}"


def result(frame):
    return sorted(map(tuple, frame.collect()), key=repr)


def test_insert_select(tables, tmp_path):
    tables.sql(f"CREATE TABLE found (m INT, t INT) USING parquet LOCATION '{tmp_path}/found'")
    try:
        tables.sql(f"INSERT INTO found {sql('insert')}")
        assert result(tables.table("found")) == left_join("insert")
        tables.sql(f"INSERT OVERWRITE found {sql('over')} ORDER BY m, t")
        assert result(tables.table("found")) == left_join("over")
    finally:
        tables.sql("DROP TABLE found")
    assert set(calls(tables, "insert").values()) == {1}


def test_a_temporary_view_over_a_join(tables):
    tables.sql(f"CREATE OR REPLACE TEMP VIEW found AS {sql('view')}")
    counts = {m: sum(t is not None for k, t in left_join("view") if k == m) for m in range(1, 5)}
    got = tables.sql("SELECT m, count(t) FROM found GROUP BY m HAVING count(t) >= 0 ORDER BY m").collect()
    assert [tuple(row) for row in got] == sorted(counts.items())


def test_a_cached_frame_asks_once(tables):
    frame = tables.sql(sql("cached")).cache()
    assert result(frame) == result(frame) == left_join("cached")
    frame.unpersist()
    assert set(calls(tables, "cached").values()) == {1}


def test_a_window_over_a_join(tables):
    got = tables.sql(f"SELECT m, t, count(t) OVER (PARTITION BY m) FROM ({sql('window')})")
    rows = left_join("window")
    counts = {m: sum(t is not None for k, t in rows if k == m) for m, _ in rows}
    assert result(got) == sorted(((m, t, counts[m]) for m, t in rows), key=repr)


def test_order_by_an_answer(tables):
    got = tables.sql("SELECT id FROM mails ORDER BY AI.IF(PROMPT('{text} sorted')) DESC NULLS LAST, id").collect()
    rank = {True: 0, False: 1, None: 2}
    assert [row.id for row in got] == [
        m[0] for m in sorted(MAILS, key=lambda m: (rank[answer("{0} sorted", m[1])], m[0]))
    ]


def test_a_cte_used_twice(tables):
    got = tables.sql(
        f"WITH w AS ({sql('cte')}) SELECT a.m, b.t FROM w a JOIN w b ON a.m = b.m WHERE a.t IS NOT NULL OR b.t IS NULL"
    )
    rows = left_join("cte")
    assert result(got) == sorted(
        ((m, t) for m, s in rows for k, t in rows if k == m and (s is not None or t is None)), key=repr
    )
    assert set(calls(tables, "cte").values()) == {1}


def test_what_was_planned_stays_planned(tables):
    frame = tables.sql(sql("again"))
    assert result(frame) == left_join("again")
    tables.conf.set("spark.quail.optimizer.enabled", "false")
    assert result(frame) == left_join("again")


def drained(spark, frame, tmp_path):
    """Everything that a stream gives."""
    frame.writeStream.format("parquet").option("path", f"{tmp_path}/out").option(
        "checkpointLocation", f"{tmp_path}/checkpoint"
    ).trigger(availableNow=True).start().awaitTermination(300)
    return result(spark.read.parquet(f"{tmp_path}/out"))


@pytest.fixture
def streams(tables, tmp_path):
    """The tables as streams of two files each, of which a batch takes one."""
    for name in ("mails", "topics"):
        rows, schema = tables.table(name).collect(), tables.table(name).schema
        parts = rows[:2], rows[2:]
        for part in parts if name == "mails" else reversed(parts):  # equal ids come in different batches
            tables.createDataFrame(part, schema).coalesce(1).write.mode("append").parquet(f"{tmp_path}/{name}")
        stream = tables.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(f"{tmp_path}/{name}")
        stream.createOrReplaceTempView(f"{name}_stream")
    return tables


def test_a_stream_joined_with_a_table(streams, tmp_path):
    tag = next(f"kept {i}" for i in range(99) if sum(bool(answer(f"{{0}} kept {i}", m[1])) for m in MAILS) == 2)
    kept = {m[0] for m in MAILS if answer(f"{{0}} {tag}", m[1])}
    text = sql("stream").replace("mails m", "mails_stream m")
    frame = streams.sql(f"{text} WHERE AI.IF(PROMPT('{{m.text}} {tag}'))")
    assert drained(streams, frame, tmp_path) == [row for row in left_join("stream") if row[0] in kept]
    assert set(calls(streams, "stream").values()) == {1}


def test_two_streams_are_joined_by_spark(streams, tmp_path):
    frame = streams.sql(
        "SELECT m.id AS m, t.id AS t FROM mails_stream m JOIN topics_stream t "
        "ON m.id = t.id AND AI.IF(PROMPT('{m.text} about {t.name} pair'))"
    )
    pairs = [(m[0], t[0]) for m in MAILS for t in TOPICS if m[0] == t[0] and answer("{0} about {1} pair", m[1], t[1])]
    assert drained(streams, frame, tmp_path) == sorted(pairs, key=repr)
