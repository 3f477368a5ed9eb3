"""AI-SQL over the tables in `examples/data/`: a filter, an aggregate and two joins. Writes Parquet.

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
TABLES = ("banking_queries", "complaints", "customers", "products", "topics")

TRANSFER = "Does {0} mention a transfer?"
FEE = "{0} is about a fee or a charge"
FILTER = f"""
SELECT id, intent, text
FROM banking_queries
WHERE length(text) > 40
  AND AI.IF(PROMPT('{TRANSFER}', text))
  AND AI.IF(PROMPT('{FEE}', text))"""

LOAN = "{0} mentions a loan or a mortgage"
GROUPED = f"""
SELECT company_response, count(*) AS complaints, count_if(AI.IF(PROMPT('{LOAN}', text))) AS about_loans
FROM complaints
WHERE length(text) < 1500
GROUP BY company_response
ORDER BY complaints DESC"""

WRITES_ABOUT = """A customer of a bank writes: {asked.text}

Statement: the customer writes about {topics.description}"""
JOIN = f"""
SELECT topics.description, count(*) AS queries, min(asked.text) AS example
FROM asked JOIN topics ON AI.IF(PROMPT('{WRITES_ABOUT}'))
GROUP BY topics.description
ORDER BY queries DESC, description"""

NO_KEY = """
SELECT customers.id, products.id FROM customers JOIN products ON AI.IF(PROMPT("{customers.profile} might buy this: {products.description}"))"""


def main() -> None:
    """Run the queries, and say how good the answers are and what they cost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default=str(HERE / "data"), help="directory or URI of the tables")
    parser.add_argument("--out", default="demo-output", help="directory or URI for the results")
    options = parser.parse_args()
    start = time.monotonic()

    spark = session()
    quail_spark.enable(spark, progress=True)
    for name in TABLES:
        spark.read.parquet(f"{options.data}/{name}.parquet").createOrReplaceTempView(name)
    print("With the default model this takes one to three minutes on two CPU cores.")

    headline("1. A filter: one relational predicate, two for the model")
    show(run(spark, FILTER, f"{options.out}/transfer_fees"))
    banking = "banking_queries WHERE length(text) > 40"
    judge(spark, TRANSFER, f"SELECT {answer(TRANSFER)}, contains(intent, 'transfer') AS label FROM {banking}")
    judge(spark, FEE, f"SELECT {answer(FEE)}, intent RLIKE 'fee|charge' AS label FROM {banking}")

    headline("2. A question inside an aggregate")
    show(run(spark, GROUPED, f"{options.out}/complaints"))
    complaints = "complaints WHERE length(text) < 1500"
    judge(spark, LOAN, f"SELECT {answer(LOAN)}, product RLIKE '[Ll]oan|ortgage' AS label FROM {complaints}")

    headline("3. A join on a question, grouped and ordered")
    spark.sql("SELECT * FROM banking_queries LEFT SEMI JOIN topics USING (intent)").createOrReplaceTempView("asked")
    spark.conf.set("spark.quail.prompt.layout", "literal")  # a small model reads two short texts better in a sentence
    show(run(spark, JOIN, f"{options.out}/topics"))
    pairs = f"SELECT AI.IF(PROMPT('{WRITES_ABOUT}')) AS answer, asked.intent = topics.intent AS label"
    judge(spark, WRITES_ABOUT, f"{pairs} FROM asked CROSS JOIN topics")
    spark.conf.set("spark.quail.prompt.layout", "document_first")

    headline("4. A join of two tables that have no key in common")
    run(spark, NO_KEY, f"{options.out}/might_buy", ("customer_id", "product_id")).createOrReplaceTempView("might_buy")
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
    print(f"\nResults are in {options.out}/. The demo took {time.monotonic() - start:.0f} s.")
    spark.stop()


def session() -> SparkSession:
    """The session that spark-submit asks for, else a quiet local one: two cores, and a task may fail three times."""
    builder = SparkSession.builder.appName("quail-spark demo")
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return builder.getOrCreate()
    from quail_spark.java_home import use_java

    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark looks the machine's own name up
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{HERE / 'log4j2.properties'}",
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
    print()  # below the progress line
    frame.show(12, truncate=90)
    print(f"{frame.count()} rows.\n", flush=True)


def answer(template: str) -> str:
    """The select item for a question about the column `text`."""
    return f"AI.IF(PROMPT('{template}', text)) AS answer"


def judge(spark: SparkSession, template: str, answers: str) -> None:
    """Print the share of answers that equal the labels beside that of always giving the more frequent one.

    What a query has answered before the engine remembers.
    """
    row = spark.sql(f"""
        SELECT count(*) AS rows, avg(int(answer = label)) AS right, avg(int(label)) AS positive
        FROM ({answers})""").first()
    majority, always = max((row.positive, "TRUE"), (1 - row.positive, "FALSE"))
    question = " ".join(template.split())
    print(f"Right in {row.right:.0%} of {row.rows}, always {always} in {majority:.0%}: {question}", flush=True)


def headline(text: str) -> None:
    """A line that stands out."""
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


if __name__ == "__main__":
    main()
