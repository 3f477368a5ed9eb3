"""AI-SQL over the tables in `examples/data/`: a filter, a join, and a join without any key. Writes Parquet.

make demo                      or, where quail-spark is installed,
spark-submit examples/demo.py [--data DIR] [--out DIR]
"""

import argparse
import os
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import quail_spark

HERE = Path(__file__).resolve().parent
TABLES = ("complaints", "complaint_kinds", "banking_queries", "customers", "products")

ABOUT_TRANSFER = "{0} is about a bank transfer"
SAYS_FAILED = "{0} says that something failed or was declined"
FILTER = f"""
SELECT id, intent, text
FROM banking_queries
WHERE length(text) > 40
  AND AI.IF(PROMPT('{ABOUT_TRANSFER}', text))
  AND AI.IF(PROMPT('{SAYS_FAILED}', text))
ORDER BY intent, id"""

OF_KIND = "{complaints.text} is a complaint about {complaint_kinds.description}"
JOIN = f"""
SELECT complaint_kinds.kind, count(*) AS complaints, round(avg(length(complaints.text))) AS mean_length
FROM complaints JOIN complaint_kinds ON AI.IF(PROMPT('{OF_KIND}'))
WHERE length(complaints.text) < 800
GROUP BY complaint_kinds.kind
ORDER BY complaints DESC, kind"""

NO_KEY = """
SELECT customers.id, products.id FROM customers JOIN products ON AI.IF(PROMPT("{customers.profile} might buy this: {products.description}"))"""


def main() -> None:
    """Run the three queries and say what they cost and how good the answers are."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(HERE / "data"), help="directory or URI of the tables")
    parser.add_argument("--out", default="demo-output", help="directory or URI for the results")
    options = parser.parse_args()
    start = time.monotonic()

    spark = session()
    quail_spark.enable(spark, progress=True)
    for name in TABLES:
        spark.read.parquet(f"{options.data}/{name}.parquet").createOrReplaceTempView(name)
    print("With the default model this takes two to five minutes on two CPU cores.")

    headline("1. A filter: one relational predicate, two for the model")
    show(run(spark, FILTER, f"{options.out}/failed_transfers"))
    judge(spark, ABOUT_TRANSFER, "contains(intent, 'transfer')")
    judge(spark, SAYS_FAILED, "intent RLIKE 'failed|declined|reverted|not_working|not_recognised|swallowed'")

    headline("2. A join on a question, grouped and ordered")
    show(run(spark, JOIN, f"{options.out}/complaints_by_kind"))
    judge_join(spark)

    headline("3. A join of two tables that have no key in common")
    pairs = run(spark, NO_KEY, f"{options.out}/might_buy", ("customer_id", "product_id"))
    pairs.createOrReplaceTempView("might_buy")
    show(
        spark.sql("""
        SELECT customers.name, collect_list(products.name) AS might_buy
        FROM might_buy JOIN customers ON customer_id = customers.id JOIN products ON product_id = products.id
        GROUP BY customers.id, customers.name ORDER BY customers.id""")
    )
    found, meant = spark.sql("SELECT count(*), count_if(customer_id = product_id) FROM might_buy").first()
    print(f"{found} of 120 pairs; among them {meant} of the 10 that the tables' author had in mind.")

    headline("What it cost")
    print(quail_spark.report(spark))
    print(f"\nResults are in {options.out}/. The whole demo took {time.monotonic() - start:.0f} s.")
    spark.stop()


def session() -> SparkSession:
    """The session that spark-submit asks for, else a quiet local one: two cores, and a task may fail three times."""
    builder = SparkSession.builder.appName("quail-spark demo")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return builder.getOrCreate()
    from quail_spark.java_home import use_java

    use_java()
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2.properties'}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return builder.master("local[2,4]").config(map=settings).getOrCreate()


def run(spark: SparkSession, query: str, out: str, names: tuple[str, ...] = ()) -> DataFrame:
    """Show query and plan, run it once into Parquet, and return what was written. `names` replace the columns'."""
    print(query.strip())
    frame = spark.sql(query)
    print(f"\nPlan:\n{quail_spark.explain(frame)}\n", flush=True)
    (frame.toDF(*names) if names else frame).write.mode("overwrite").parquet(out)
    return spark.read.parquet(out)


def show(frame: DataFrame) -> None:
    """Up to 12 rows, and how many there are."""
    frame.show(12, truncate=90)
    print(f"{frame.count()} rows.\n")


def judge(spark: SparkSession, template: str, label: str) -> None:
    """Compare the answers over all rows that the filter's relational predicate leaves with the source's labels."""
    accuracy(
        spark,
        template,
        f"""
        SELECT AI.IF(PROMPT('{template}', text)) AS answer, {label} AS label
        FROM banking_queries WHERE length(text) > 40""",
    )


def judge_join(spark: SparkSession) -> None:
    """The same over all pairs; the model has answered them before, and the engine remembers."""
    accuracy(
        spark,
        OF_KIND,
        f"""
        SELECT AI.IF(PROMPT('{OF_KIND}')) AS answer, exists(product_names, name -> startswith(product, name)) AS label
        FROM complaints CROSS JOIN complaint_kinds WHERE length(complaints.text) < 800""",
    )


def accuracy(spark: SparkSession, template: str, answers: str) -> None:
    """Print the share of right answers beside that of always giving the more frequent one."""
    row = spark.sql(f"""
        SELECT count(*) AS rows, avg(int(answer = label)) AS right, avg(int(label)) AS positive
        FROM ({answers})""").first()
    majority, always = max((row.positive, "TRUE"), (1 - row.positive, "FALSE"))
    print(f"Right in {row.right:.0%} of {row.rows}, always {always} in {majority:.0%}: {template}")


def headline(text: str) -> None:
    """A line that stands out."""
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


if __name__ == "__main__":
    main()
