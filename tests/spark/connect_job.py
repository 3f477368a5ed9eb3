"""AI calls in a session of Spark Connect: run as a script by test_connect.py, since a process has either kind of session.

    python -m tests.spark.connect_job SEED
prints what each query gave, as JSON, last.
"""

import json
import sys
from random import Random

MODEL = "scripted://hash?rate=0.5&seed=7"
NEW, SAME = "{0} is new", "{0} means {1}"
QUERIES = {
    "filter": f"SELECT id FROM rows WHERE id > 1 AND AI.IF(PROMPT('{NEW}', text))",
    "named": "SELECT id FROM rows WHERE AI_FILTER(PROMPT('{rows.text} is new'))",
    "select": f"SELECT id, AI.IF(PROMPT('{NEW}', text)) FROM rows",
    "grouped": f"SELECT AI.IF(PROMPT('{NEW}', text)) AS new, count(*) FROM rows GROUP BY new",
    "join": f"SELECT a.id, b.id FROM rows a JOIN few b ON AI.IF(PROMPT('{SAME}', a.text, b.text))",
    "left": f"SELECT a.id, b.id FROM few a LEFT JOIN few b ON a.id < b.id AND AI.IF(PROMPT('{SAME}', a.text, b.text))",
    "exists": f"SELECT id FROM rows a WHERE EXISTS (SELECT 1 FROM few b WHERE AI.IF(PROMPT('{SAME}', a.text, b.text)))",
}


def texts(seed: int) -> list[str | None]:
    """The texts of rows 0, 1, …"""
    random = Random(seed)
    return [None if random.random() < 0.2 else f"word {random.randrange(9)}" for _ in range(20)]


def main(seed: int) -> None:
    """Ask everything."""
    from pyspark.sql import SparkSession

    import quail_spark
    from quail_spark.functions import ai_if, prompt

    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    quail_spark.enable(spark, model=MODEL, progress="false")
    rows = spark.createDataFrame(list(enumerate(texts(seed))), "id int, text string")
    rows.createOrReplaceTempView("rows")
    rows.filter("id < 5").createOrReplaceTempView("few")
    got = {"frame": [tuple(row) for row in rows.filter(ai_if(prompt(NEW, "text"))).select("id").collect()]}
    for name, query in QUERIES.items():
        try:
            got[name] = [tuple(row) for row in spark.sql(query).collect()]
        except Exception as error:
            got[name] = f"{type(error).__name__}: {error}"[:2000]
    quail_spark.disable(spark)
    try:
        spark.sql(QUERIES["filter"])
    except Exception as error:
        got["disabled"] = type(error).__name__
    try:
        rows.filter(ai_if(prompt(NEW, "text"))).collect()
    except Exception as error:
        got["frame of a disabled session"] = str(error)
    spark.stop()
    print(json.dumps(got))


if __name__ == "__main__":
    main(int(sys.argv[1]))
