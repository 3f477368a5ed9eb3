"""What the planner knows of tables that nobody analysed: from the footers of Parquet files, without a job."""

import random
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quail_spark
from quail_spark.catalyst import _bridges, planned
from quail_spark.plan_statistics import PlanStatistics
from quail_spark.scala import Catalyst

SEED = random.randrange(1 << 30)


@pytest.fixture
def draw(request):
    print("seed", SEED)
    return random.Random(f"{SEED} {request.node.name}")


def texts(draw: random.Random, count: int, most: int = 300) -> list[str | None]:
    """Different words of one and two bytes a letter, and NULLs."""
    letters = "abcdefghijklmnopqrstuvwxyzäß"
    return [
        None if draw.random() < 0.1 else "".join(draw.choices(letters, k=draw.randint(1, most))) for _ in range(count)
    ]


def mean_bytes(values: list[str | None]) -> float:
    return sum(len((value or "").encode()) for value in values) / len(values)


class Known:
    """The statistics of a frame's optimised plan."""

    def __init__(self, frame, files: int = 8):
        spark = frame.sparkSession
        self.plan = frame._jdf.queryExecution().optimizedPlan()
        builder = _bridges[spark.sparkContext._gateway].builder
        self.statistics = PlanStatistics(Catalyst(spark), builder, files)

    @property
    def rows(self) -> int | None:
        return self.statistics.rows(self.plan)

    def column(self, name: str):
        return next(
            a for a in (self.plan.output().apply(i) for i in range(self.plan.output().size())) if a.name() == name
        )

    def text_bytes(self, name: str) -> float | None:
        return self.statistics.text_bytes(self.plan, self.column(name))

    def distinct(self, name: str) -> float | None:
        return self.statistics.distinct(self.plan, self.column(name))


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("sizes", [True, False])
def test_rows_and_lengths_are_those_of_the_files(spark, draw, tmp_path, dictionary, sizes):
    """Whether or not the writer counted bytes; only of dictionaries without that count nothing is known."""
    values = texts(draw, draw.randint(200, 2000))
    for number in range(3):
        table = pa.table({"id": range(len(values)), "Text": values})
        statistics = {} if sizes else {"write_statistics": False}
        pq.write_table(table, tmp_path / f"{number}.parquet", use_dictionary=dictionary, **statistics)
    known = Known(spark.read.parquet(str(tmp_path)))
    assert known.rows == 3 * len(values)
    if found := known.text_bytes("Text"):
        assert found == pytest.approx(mean_bytes(values), rel=0.02, abs=2)
    else:
        assert dictionary and not sizes


def test_many_files_are_sampled(spark, draw, tmp_path):
    values = texts(draw, 6000)
    spark.createDataFrame(enumerate(values), "id int, text string").repartition(30).write.parquet(str(tmp_path / "t"))
    frame = spark.read.parquet(str(tmp_path / "t"))
    known = Known(frame, files=5)
    assert known.rows == pytest.approx(6000, rel=0.1)
    assert known.text_bytes("text") == pytest.approx(mean_bytes(values), rel=0.1)
    (footers,) = known.statistics._footers.values()
    assert footers._facts["read"] == 5
    assert Known(frame, files=30).rows == 6000
    assert Known(frame, files=0).rows is Known(frame, files=0).text_bytes("text") is None


def test_values_that_repeat_are_counted_about(spark, draw, tmp_path):
    keys, count = draw.randint(5, 40), 4000
    rows = [(i, draw.randrange(keys), f"group {draw.randrange(keys)}") for i in range(count)]
    spark.createDataFrame(rows, "id int, number long, name string").coalesce(2).write.parquet(str(tmp_path / "t"))
    known = Known(spark.read.parquet(str(tmp_path / "t")))
    for name in ("number", "name"):
        assert keys / 3 < known.distinct(name) < keys * 3
    assert known.distinct("id") is None  # each once: the planner takes an equality for a foreign key's


def test_what_is_between_a_table_and_a_question(spark, draw, tmp_path):
    """Names may change and rows may be left out: rows are told where no filter guesses, lengths wherever values pass."""
    long, short = texts(draw, 500, 400), texts(draw, 500, 40)
    rows = list(zip(range(500), long, short, strict=True))
    spark.createDataFrame(rows, "id int, long string, short string").write.parquet(str(tmp_path / "t"))
    spark.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("between")
    renamed = Known(spark.sql("SELECT long AS body, upper(short) AS s FROM between WHERE long IS NOT NULL"))
    assert renamed.rows == 500
    assert renamed.text_bytes("body") == pytest.approx(mean_bytes(long), rel=0.02)
    assert renamed.text_bytes("s") == pytest.approx(mean_bytes(short), rel=0.02, abs=1)
    filtered = Known(spark.sql("SELECT * FROM between WHERE id < 7"))
    assert filtered.rows is None and filtered.statistics.rows_read(filtered.plan) == 500
    joined = Known(spark.sql("SELECT a.long FROM between a JOIN between b ON a.id = b.id"))
    assert joined.rows is None and joined.text_bytes("long") == renamed.text_bytes("body")
    grouped = Known(spark.sql("SELECT max(long) AS m FROM between GROUP BY id"))
    assert grouped.rows is grouped.text_bytes("m") is None


def test_partitions_and_analysed_tables(spark, draw, tmp_path):
    values = texts(draw, 300)
    frame = spark.createDataFrame([(i % 3, text) for i, text in enumerate(values)], "part int, text string")
    spark.sql("DROP TABLE IF EXISTS in_parts")
    frame.write.partitionBy("part").saveAsTable("in_parts")
    try:
        assert Known(spark.table("in_parts")).rows is None  # Spark lists all partitions only when it reads them
        assert Known(spark.sql("SELECT text FROM in_parts WHERE part = 1")).rows == 100
        spark.conf.set("spark.sql.cbo.enabled", "true")
        spark.sql("ANALYZE TABLE in_parts COMPUTE STATISTICS FOR ALL COLUMNS")
        known = Known(spark.table("in_parts"), files=0)
        assert known.rows == 300 and known.distinct("part") == 3
        assert known.text_bytes("text") == pytest.approx(mean_bytes(values), rel=0.2)
    finally:
        spark.sql("DROP TABLE in_parts")


def test_what_is_no_parquet_or_has_gone_is_unknown(spark, draw, tmp_path):
    frame = spark.createDataFrame([(text,) for text in texts(draw, 50)], "text string")
    frame.write.json(str(tmp_path / "j"))
    assert Known(spark.read.schema("text string").json(str(tmp_path / "j"))).rows is None
    frame.write.parquet(str(tmp_path / "p"))
    gone = spark.read.parquet(str(tmp_path / "p"))
    shutil.rmtree(tmp_path / "p")
    assert Known(gone).rows is Known(gone).text_bytes("text") is None
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "x.parquet").write_bytes(b"PAR1 no footer PAR1")
    broken = Known(spark.read.schema("text string").parquet(str(tmp_path / "p")))
    assert broken.rows is None


def test_no_job_runs_and_the_anchor_is_the_long_side(spark, draw, tmp_path):
    """Of two plain Parquet tables the few long texts become the anchor, whichever is written first."""
    few, many = texts(draw, 20, 2000), texts(draw, 200, 20)
    for name, values in (("few", few), ("many", many)):
        spark.createDataFrame([(text,) for text in values], f"{name} string").write.parquet(str(tmp_path / name))
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("planning", "")
    for prompt in ("'{0} suits {1}', many, few", "'{0} suits {1}', few, many"):
        with planned.recording() as runs:
            explained = quail_spark.explain(spark.sql(f"SELECT * FROM many JOIN few ON AI.IF(PROMPT({prompt}))"))
        ((operator,),) = [run.operators for run in runs if run.operators]
        anchor = operator.arguments[0][operator.spec.predicates[0].anchor[0]]
        assert anchor.endswith("few") and operator.rows == (20, 200), explained
    assert not tracker.getJobIdsForGroup("planning")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
