"""AI predicates in Spark: quail-spark beside a plain pandas_udf over transformers, in one run on one machine.

    python benchmarks/spark/compare.py REVIEWS.parquet:review ANCHORS.parquet:column PARTNERS.parquet:column --runs 3

Three queries: one predicate over the first file's texts, three predicates over them, and a join of 20 anchors with 50
partners. The baseline is what one writes by hand: an iterator pandas_udf per predicate, the model loaded once per
worker, prompts sorted by length and batched, logits of the last position only; Spark computes every predicate for
every row, and the join on the cross product. Both sides see the same prompts (token for token), number type and cores.
The engine's model is loaded and its memory of answers is off; the baseline's loading is measured and subtracted.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import array, col, pandas_udf

import quail_spark
from quail_spark.engines import resolve_model
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

FILTERS = ("{0} is a positive review", "{0} praises an actor", "{0} is about a film for children")
JOIN = "{0} mentions this: {1}"
BATCH = 16
CORES = 2


def baseline_udf(template: str, arguments: int, model_path: str, dtype: str):
    """`udf(array of texts)`: the same prompts through transformers."""

    @pandas_udf("boolean")
    def asks(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        import torch
        from transformers import AutoModelForCausalLM

        from quail_spark.engine.readout import Readout
        from quail_spark.engine.rendering import Renderer, TokenCache
        from quail_spark.engine.tokens import Tokens

        torch.set_num_threads(1)  # one worker per core
        tokens = Tokens.load(model_path)
        readout = Readout.of(tokens)
        spec = OperatorSpec("b", "answers", (Predicate(template, tuple(map(Argument, range(arguments)))),))
        renderer = Renderer(tokens, TokenCache(tokens), spec, "baseline", 32768)
        model = AutoModelForCausalLM.from_pretrained(model_path, dtype=getattr(torch, dtype)).eval()
        for texts in batches:
            questions = renderer.questions([(0, tuple(row)) for row in texts])
            prompts = [[int(t) for part in q.parts for t in part] for q in questions]
            order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
            answers = [False] * len(prompts)
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                width = max(len(prompts[i]) for i in chosen)
                ids = torch.zeros(len(chosen), width, dtype=torch.long)
                mask = torch.zeros_like(ids)
                for row, i in enumerate(chosen):
                    ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
                    mask[row, width - len(prompts[i]) :] = 1
                with torch.inference_mode():
                    logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=1, use_cache=False).logits[:, -1]
                margins = readout.margins(logits[:, list(readout.ids)].float().numpy())
                for i, margin in zip(chosen, margins, strict=True):
                    answers[i] = bool(margin > 0)
            yield pd.Series(answers)

    return asks


def timed(action) -> tuple[float, list]:
    """Seconds and rows."""
    start = time.perf_counter()
    rows = action()
    return time.perf_counter() - start, rows


def queries(spark, path: str, dtype: str) -> dict:
    """Name → (ours, baseline, what the baseline pays for loading)."""
    udfs = [baseline_udf(template, 1, path, dtype) for template in FILTERS]
    join_udf = baseline_udf(JOIN, 2, path, dtype)
    reviews, anchors, partners = (spark.table(name) for name in ("reviews", "anchors", "partners"))

    def ids(df):
        return sorted(tuple(row) for row in df.collect())

    def ours(count):
        where = " AND ".join(f"AI.IF(PROMPT('{template}', text))" for template in FILTERS[:count])
        return ids(spark.sql(f"SELECT id FROM reviews WHERE {where}"))

    def plain(count):
        df = reviews
        for udf in udfs[:count]:
            df = df.where(udf(array(col("text"))))
        return ids(df.select("id"))

    def our_join():
        return ids(
            spark.sql(f"SELECT a.id, p.id FROM anchors a JOIN partners p ON AI.IF(PROMPT('{JOIN}', a.text, p.text))")
        )

    def plain_join():
        pairs = anchors.alias("a").crossJoin(partners.alias("p")).repartition(CORES)
        return ids(pairs.where(join_udf(array(col("a.text"), col("p.text")))).select("a.id", "p.id"))

    return {
        "one predicate": (lambda: ours(1), lambda: plain(1), 1),
        "three predicates": (lambda: ours(3), lambda: plain(3), 3),
        "join 20 × 50": (our_join, plain_join, 1),
    }


def read(spark, source: str, rows: int, view: str) -> None:
    path, column = source.rsplit(":", 1)
    df = spark.read.parquet(path).selectExpr("id", f"{column} AS text").where("text IS NOT NULL").limit(rows)
    df.repartition(CORES).cache().createOrReplaceTempView(view)
    spark.table(view).count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reviews")
    parser.add_argument("anchors")
    parser.add_argument("partners")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--only", default="", help="queries whose names contain this")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="")
    arguments = parser.parse_args()
    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    quail_spark.enable(
        spark, model=arguments.model, dtype=arguments.dtype, engine_answer_memory=0, engine_threads=CORES
    )
    path = resolve_model(arguments.model)
    read(spark, arguments.reviews, arguments.rows, "reviews")
    read(spark, arguments.anchors, 20, "anchors")
    read(spark, arguments.partners, 50, "partners")
    spark.sql(
        "SELECT id FROM reviews WHERE id = '' OR AI.IF(PROMPT('{0} loads the engine', substr(text, 1, 20)))"
    ).collect()
    loading = baseline_udf("{0}", 1, path, arguments.dtype)
    empty, _ = timed(
        lambda: spark.range(CORES).repartition(CORES).where(loading(array(col("id").cast("string")))).collect()
    )

    results = []
    for name, (ours, baseline, loads) in queries(spark, path, arguments.dtype).items():
        if arguments.only not in name:
            continue
        mine, plain = [], []
        for _ in range(arguments.runs):
            seconds, rows = timed(ours)
            mine.append(seconds)
            seconds, expected = timed(baseline)
            plain.append(max(0.0, seconds - loads * empty))
            differing = len(set(rows) ^ set(expected))
        a, b = statistics.median(mine), statistics.median(plain)
        results.append(
            {
                "query": name,
                "quail_s": mine,
                "plain_s": plain,
                "ratio": b / a,
                "rows": len(rows),
                "differing": differing,
            }
        )
        print(
            f"{name:18} quail-spark {a:7.1f} s   pandas_udf {b:7.1f} s   {b / a:5.1f}×   {len(rows)} rows, {differing} differ",
            flush=True,
        )
    print(quail_spark.report(spark), file=sys.stderr)
    print(json.dumps({"baseline_load_s": empty, "dtype": arguments.dtype, "results": results}))


if __name__ == "__main__":
    main()
