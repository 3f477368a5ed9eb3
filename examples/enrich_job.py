"""A job that asks a model one question about every row of a table and writes the table with the answers.

    spark-submit --master local[2] examples/enrich_job.py --input ./reviews.parquet --output ./refunds \\
        --prompt '{0} asks for a refund' --column body
    spark-submit --master spark://host:7077 --packages io.delta:delta-spark_4.1_2.13:4.4.0 \\
        --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension \\
        --conf spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog \\
        examples/enrich_job.py --format delta --input sales.reviews --output sales.refunds --mode append …

Exit status: 0 the table is written; 1 the job failed; 2 the arguments are wrong (nothing was written).
"""

import argparse
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import quail_spark
from quail_spark.errors import ConfigError, ModelError, PromptError
from quail_spark.functions import ai_if, prompt
from quail_spark.sql_template import number_columns

MODES = ("error", "append", "overwrite", "ignore")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job; returns the exit status, or exits with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        number_columns(options.prompt, len(options.column))
    except PromptError as error:
        parser.error(str(error))
    try:
        spark = SparkSession.builder.appName(f"enrich {options.input}").getOrCreate()
        try:
            run(spark, options, parser)
        finally:
            spark.stop()
    except Exception as error:
        print(f"enrich_job failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def run(spark: SparkSession, options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Read, ask, write, and say on standard output how many rows got which answer."""
    try:
        given = {"model": options.model, "on_error": options.on_error}
        quail_spark.enable(spark, **{name: value for name, value in given.items() if value})
    except (ConfigError, ModelError) as error:
        parser.error(str(error))
    source = read(spark, options.input, options.format)
    _check_columns(source, options, parser)
    question = ai_if(prompt(options.prompt, *options.column))
    enriched = source.filter(question) if options.only_true else source.withColumn(options.answer, question)
    observed = Observation("enriched")
    write(enriched.observe(observed, *counts(options)), options)
    told = ", ".join(f"{number:,} {name}" for name, number in observed.get.items())
    print(f"{options.output}: {told}")
    print(quail_spark.report(spark), flush=True)


def read(spark: SparkSession, name: str, kind: str) -> DataFrame:
    """The table of this name, or what lies below this path (a name with a slash or a dot in front)."""
    return spark.read.format(kind).load(name) if is_path(name) else spark.table(name)


def write(frame: DataFrame, options: argparse.Namespace) -> None:
    """To a path or a table, as `read` tells them apart."""
    writer = frame.write.format(options.format).mode(options.mode)
    if is_path(options.output):
        writer.save(options.output)
    else:
        writer.saveAsTable(options.output)


def is_path(name: str) -> bool:
    """Whether `name` is a path or URI, as opposed to a table."""
    return "/" in name or name.startswith(".")


def counts(options: argparse.Namespace) -> list:
    """What is counted while the rows are written."""
    rows = F.count(F.lit(1)).alias("rows")
    if options.only_true:
        return [rows]
    answer = F.col(options.answer)
    tests = {"TRUE": answer, "FALSE": ~answer, "NULL": answer.isNull()}
    return [rows, *(F.count_if(test).alias(name) for name, test in tests.items())]


def _check_columns(source: DataFrame, options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    missing = [name for name in options.column if name.split(".")[0].strip("`").lower() not in _names(source)]
    if missing:
        parser.error(f"--column {missing[0]} is not in {options.input}; accepted: {', '.join(source.columns)}")
    if not options.only_true and options.answer.lower() in _names(source):
        parser.error(f"--answer {options.answer} is already a column of {options.input}; name another one")


def _names(source: DataFrame) -> set[str]:
    return {name.lower() for name in source.columns}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="enrich_job.py", description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--input", required=True, help="path or URI (with a slash), else a table's name")
    add("--output", required=True, help="path or URI (with a slash), else a table's name")
    add("--format", default="parquet", help="data source of paths and of the output: parquet, delta, orc, … (parquet)")
    add("--prompt", required=True, help="the question, with {0}, {1}, … for the columns")
    add("--column", required=True, action="append", help="a column that the question is about; repeat for {1}, {2}, …")
    add("--answer", default="answer", help="name of the boolean column that is added (answer)")
    add("--only-true", action="store_true", help="add no column, but keep only the rows with the answer TRUE")
    add(
        "--model",
        default="",
        help="directory of safetensors, GGUF file or hub id (spark.quail.model, else the default)",
    )
    add("--mode", default="error", choices=MODES, help="when the output exists (error)")
    add("--on-error", choices=("fail", "null"), help="rows that can't be answered (spark.quail.onError, else fail)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
