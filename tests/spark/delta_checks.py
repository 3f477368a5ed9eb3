"""What quail-spark is expected to do over Delta tables: run by test_delta.py under `spark-submit`, in a Spark with Delta.

Each check is a function of the session and its random numbers. The last line printed is JSON: what went wrong, by check.
"""

import json
import re
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import quail_spark
from quail_spark.conf import QuailConf
from quail_spark.engine.client import connect
from quail_spark.engine.scripted import scripted_answer
from quail_spark.engines import resolve_device, resolve_model
from quail_spark.functions import ai_if, prompt

RATE, SEED = 0.5, 11
MODEL = f"scripted://hash?rate={RATE}&seed={SEED}"
NEW, URGENT, SAME = "{0} is new", "{0} is urgent", "{0} means the same as {1}"
IS_NEW, IS_URGENT = f"AI.IF(PROMPT('{NEW}', text))", f"AI.IF(PROMPT('{URGENT}', text))"
TEXTS = ("pay me back", "where is my card", "hello", "too slow", "", None, "the app is down", "thanks", "a fee again")


def answer(template: str, *texts: str | None) -> bool | None:
    """The model's."""
    return None if None in texts else scripted_answer(template, texts, RATE, SEED)


def rows(random: Random, start: int = 0, number: int = 40) -> list[tuple[int, str, str | None]]:
    """Rows (id, part, text)."""
    return [(start + i, random.choice("abc"), random.choice(TEXTS)) for i in range(number)]


def save(spark: SparkSession, name: str, table: list, partitioned: bool = False) -> str:
    """A new Delta table of these rows in two files or more; returns its name."""
    spark.sql(f"DROP TABLE IF EXISTS {name}")
    frame = spark.createDataFrame(table, "id long, part string, text string").repartition(2, "id")
    writer = frame.write.format("delta")
    (writer.partitionBy("part") if partitioned else writer).saveAsTable(name)
    return name


def got(frame) -> Counter:
    """Rows with how often each occurs."""
    return Counter(tuple(row) for row in frame.collect())


def equal(found: Counter, expected: list) -> None:
    """Same rows, each as often."""
    wanted = Counter(expected)
    assert found == wanted, (
        f"missing {list((wanted - found).items())[:5]}, surplus {list((found - wanted).items())[:5]}"
    )


def planned(frame) -> bool:
    """Whether an AI operator stands in the plan, and no AI call outside of one."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return bool(re.search(r"\bai_(filter|join)-", plan)) and "ArrowEvalPython" not in plan


def asked(spark: SparkSession) -> int:
    """Rows that the engine has been asked about so far."""
    conf = QuailConf.of_session(spark)
    config = conf.engine(model=resolve_model(conf["model"]), device=resolve_device(conf["device"]))
    client = connect(config, spark.sparkContext.applicationId)
    try:
        return sum(operator["rows"] for operator in client.stats()["operators"].values())
    finally:
        client.close()


def check_read_enrich_write(spark, random):
    table = rows(random)
    save(spark, "raw", table)
    kept = spark.table("raw").filter("id > 3").filter(ai_if(prompt(NEW, "text")))
    assert planned(kept)
    enriched = kept.withColumn("urgent", ai_if(prompt(URGENT, "text")))
    enriched.write.format("delta").mode("overwrite").saveAsTable("enriched")
    expected = [(i, p, t, answer(URGENT, t)) for i, p, t in table if i > 3 and answer(NEW, t)]
    equal(got(spark.table("enriched")), expected)
    path = spark.sql("DESCRIBE DETAIL enriched").first().location
    equal(got(spark.read.format("delta").load(path)), expected)


def check_create_table_as_select(spark, random):
    table = rows(random)
    save(spark, "raw", table)
    spark.sql("DROP TABLE IF EXISTS made")
    spark.sql(
        f"CREATE TABLE made USING delta PARTITIONED BY (part) AS SELECT id, part FROM raw WHERE {IS_NEW} AND {IS_URGENT}"
    )
    equal(got(spark.table("made")), [(i, p) for i, p, t in table if answer(NEW, t) and answer(URGENT, t)])
    spark.sql(f"INSERT INTO made SELECT id, part FROM raw WHERE NOT {IS_NEW}")
    again = [(i, p) for i, p, t in table if answer(NEW, t) is False]
    equal(got(spark.table("made")), again + [(i, p) for i, p, t in table if answer(NEW, t) and answer(URGENT, t)])


def check_merge_with_a_question_in_the_source(spark, random):
    old, new = rows(random, 0), rows(random, 20)
    save(spark, "target", old)
    save(spark, "source", new)
    spark.sql(f"""MERGE INTO target USING (SELECT * FROM source WHERE {IS_NEW}) AS s ON target.id = s.id
        WHEN MATCHED THEN UPDATE SET text = s.text, part = 'm' WHEN NOT MATCHED THEN INSERT *""")
    found = {i: (i, p, t) for i, p, t in old}
    for i, p, t in new:
        if answer(NEW, t):
            found[i] = (i, "m" if i in found else p, t)
    equal(got(spark.table("target")), list(found.values()))


def check_merge_with_a_question_in_on(spark, random):
    old, new = rows(random, 0), rows(random, 20)
    save(spark, "target", old)
    save(spark, "source", new)
    spark.sql(f"""MERGE INTO target AS t USING source AS s
        ON t.id = s.id AND AI.IF(PROMPT('{SAME}', t.text, s.text))
        WHEN MATCHED THEN UPDATE SET part = 'm' WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.id < 5 THEN DELETE""")
    texts = {i: t for i, _, t in new}
    same = {i for i, _, t in old if i in texts and answer(SAME, t, texts[i])}
    expected = [(i, "m" if i in same else p, t) for i, p, t in old if i >= 5 or i in same]
    equal(got(spark.table("target")), expected + [row for row in new if row[0] not in same])


def check_merge_with_questions_in_its_clauses(spark, random):
    old, new = rows(random, 0), rows(random, 20)
    save(spark, "target", old)
    save(spark, "source", new)
    spark.sql(f"""MERGE INTO target AS t USING source AS s ON t.id = s.id
        WHEN MATCHED AND AI.IF(PROMPT('{NEW}', s.text)) THEN UPDATE SET part = 'm'
        WHEN MATCHED AND AI.IF(PROMPT('{URGENT}', t.text)) THEN DELETE
        WHEN NOT MATCHED AND AI.IF(PROMPT('{URGENT}', s.text)) THEN INSERT *""")
    texts = {i: t for i, _, t in new}
    marked = {i for i, _, t in old if i in texts and answer(NEW, texts[i])}
    deleted = {i for i, _, t in old if i in texts and i not in marked and answer(URGENT, t)}
    known = {i for i, _, _ in old}
    expected = [(i, "m" if i in marked else p, t) for i, p, t in old if i not in deleted]
    equal(got(spark.table("target")), expected + [r for r in new if r[0] not in known and answer(URGENT, r[2])])


def check_update_and_delete(spark, random):
    table = rows(random)
    save(spark, "target", table, partitioned=True)
    spark.sql(f"UPDATE target SET part = 'u' WHERE part = 'a' AND {IS_NEW}")
    spark.sql(f"DELETE FROM target WHERE {IS_URGENT}")
    changed = [(i, "u" if p == "a" and answer(NEW, t) else p, t) for i, p, t in table]
    equal(got(spark.table("target")), [row for row in changed if not answer(URGENT, row[2])])


def check_deletion_vectors(spark, random):
    table = rows(random)
    save(spark, "target", table)
    spark.sql("ALTER TABLE target SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM target WHERE {IS_NEW}")
    left = [row for row in table if not answer(NEW, row[2])]
    equal(got(spark.table("target")), left)
    spark.sql(f"UPDATE target SET part = 'u' WHERE {IS_URGENT}")
    equal(got(spark.table("target")), [(i, "u" if answer(URGENT, t) else p, t) for i, p, t in left])


def check_time_travel(spark, random):
    old, new = rows(random, 0), rows(random, 40)
    save(spark, "target", old)
    spark.createDataFrame(new, "id long, part string, text string").write.format("delta").mode("append").saveAsTable(
        "target"
    )
    for version, table in ((0, old), (1, old + new)):
        found = spark.sql(f"SELECT id FROM target VERSION AS OF {version} WHERE {IS_NEW}")
        equal(got(found), [(i,) for i, _, t in table if answer(NEW, t)])
    spark.sql("RESTORE TABLE target TO VERSION AS OF 0")
    equal(got(spark.sql(f"SELECT id FROM target WHERE {IS_NEW}")), [(i,) for i, _, t in old if answer(NEW, t)])


def check_schema_evolution(spark, random):
    old, new = rows(random, 0), rows(random, 40)
    save(spark, "target", old)
    save(spark, "source", new)
    answered = spark.sql(f"SELECT *, {IS_NEW} AS is_new FROM source")
    answered.write.format("delta").mode("append").option("mergeSchema", "true").saveAsTable("target")
    expected = [(*row, None) for row in old] + [(*row, answer(NEW, row[2])) for row in new]
    equal(got(spark.table("target")), expected)
    found = spark.sql(f"SELECT id FROM target WHERE is_new IS NULL AND {IS_URGENT}")
    equal(got(found), [(i,) for i, _, t, known in expected if known is None and answer(URGENT, t)])


def check_stream_of_batches(spark, random):
    home = Path(tempfile.mkdtemp())
    tables = [rows(random, 0, 20), rows(random, 20, 20)]
    save(spark, "arriving", tables[0])
    spark.sql("DROP TABLE IF EXISTS kept")

    def keep(frame, batch):
        frame.filter(ai_if(prompt(NEW, "text"))).select("id").write.format("delta").mode("append").saveAsTable("kept")

    for step, table in enumerate(tables):
        if step:
            frame = spark.createDataFrame(table, "id long, part string, text string")
            frame.write.format("delta").mode("append").saveAsTable("arriving")
        stream = spark.readStream.table("arriving").writeStream.foreachBatch(keep)
        query = stream.option("checkpointLocation", str(home / "progress")).trigger(availableNow=True).start()
        query.awaitTermination()
        arrived = [row for rows in tables[: step + 1] for row in rows]
        equal(got(spark.table("kept")), [(i,) for i, _, t in arrived if answer(NEW, t)])


def check_stream_without_batches(spark, random):
    home, table = Path(tempfile.mkdtemp()), rows(random)
    save(spark, "arriving", table)
    frame = spark.readStream.table("arriving").filter(ai_if(prompt(NEW, "text"))).select("id")
    stream = frame.writeStream.format("delta").option("checkpointLocation", str(home / "progress"))
    stream.trigger(availableNow=True).start(str(home / "out")).awaitTermination()
    equal(got(spark.read.format("delta").load(str(home / "out"))), [(i,) for i, _, t in table if answer(NEW, t)])


def check_cache(spark, random):
    table = rows(random)
    save(spark, "raw", table)
    expected = [(i, answer(URGENT, t)) for i, _, t in table if answer(NEW, t)]
    frame = spark.sql(f"SELECT id, {IS_URGENT} AS urgent FROM raw WHERE {IS_NEW}").cache()
    equal(got(frame), expected)
    before = asked(spark)
    equal(got(frame), expected)
    assert asked(spark) == before
    spark.sql("DELETE FROM raw WHERE id < 20")
    equal(got(spark.sql(f"SELECT id FROM raw WHERE {IS_NEW}")), [(i,) for i, _ in expected if i >= 20])
    assert asked(spark) > before
    frame.unpersist()


def check_partitioned_and_bucketed_inputs(spark, random):
    left, right = rows(random, 0), rows(random, 20)
    save(spark, "parts", left, partitioned=True)
    spark.sql("DROP TABLE IF EXISTS buckets")
    frame = spark.createDataFrame(right, "id long, part string, text string")
    frame.write.format("parquet").bucketBy(3, "id").sortBy("id").saveAsTable("buckets")
    found = spark.sql(f"SELECT id FROM parts WHERE part IN ('a', 'c') AND {IS_NEW}")
    equal(got(found), [(i,) for i, p, t in left if p in "ac" and answer(NEW, t)])
    found = spark.sql(f"""SELECT p.id FROM parts p JOIN buckets b
        ON p.id = b.id AND AI.IF(PROMPT('{SAME}', p.text, b.text)) WHERE {IS_NEW.replace("text", "b.text")}""")
    texts = {i: t for i, _, t in right}
    equal(got(found), [(i,) for i, _, t in left if i in texts and answer(SAME, t, texts[i]) and answer(NEW, texts[i])])


def check_join_with_adaptive_execution(spark, random):
    left, right = rows(random, 0, 12), rows(random, 0, 9)
    save(spark, "one", left)
    save(spark, "two", right)
    for adaptive in ("true", "false"):
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
        found = spark.sql(f"""SELECT one.id AS a, two.id AS b FROM one LEFT JOIN two
            ON one.part = two.part AND AI.IF(PROMPT('{SAME}', one.text, two.text))""")
        pairs = [(i, j) for i, p, t in left for j, q, u in right if p == q and answer(SAME, t, u)]
        equal(got(found), pairs + [(i, None) for i, _, _ in left if i not in {a for a, _ in pairs}])
    spark.conf.set("spark.sql.adaptive.enabled", "true")


def check_aggregates_and_windows(spark, random):
    table = rows(random)
    save(spark, "raw", table)
    found = spark.sql(f"SELECT part, count_if({IS_NEW}) AS n FROM raw WHERE {IS_URGENT} GROUP BY part")
    urgent = [(p, t) for _, p, t in table if answer(URGENT, t)]
    equal(got(found), [(p, sum(answer(NEW, t) for q, t in urgent if q == p)) for p in {p for p, _ in urgent}])
    ranked = spark.table("raw").filter(ai_if(prompt(NEW, "text"))).groupBy("part").agg(F.max("id").alias("last"))
    new = [(p, i) for i, p, t in table if answer(NEW, t)]
    equal(got(ranked), [(p, max(i for q, i in new if q == p)) for p in {p for p, _ in new}])


def check_sizes_are_known(spark, random):
    """From the footers of the files of the version that is read, a partition's alone where one is chosen."""
    table = rows(random, number=random.randint(40, 90))
    save(spark, "raw", table, partitioned=True)
    explained = quail_spark.explain(spark.sql(f"SELECT id FROM raw WHERE {IS_NEW}"))
    assert f"{len(table)} rows)" in explained, explained
    spark.sql("INSERT INTO raw VALUES (1000, 'z', 'one more')")
    explained = quail_spark.explain(spark.sql(f"SELECT id FROM raw WHERE part = 'z' AND {IS_NEW}"))
    assert "(about 1 row" in explained, explained


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main() -> None:
    """Run every check with the seed given, each planned strictly."""
    seed, names = int(sys.argv[1]), sys.argv[2:] or list(CHECKS)
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    quail_spark.enable(spark, model=MODEL, progress="false", optimizer_strict=True)
    failures = {}
    for name in names:
        try:
            CHECKS[name](spark, Random(f"{seed} {name}"))
        except Exception:
            failures[name] = traceback.format_exc()[-4000:]
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
