"""The suite through Spark: the same SQL files by `spark.sql`, beside the local runner over the same rows.

    python benchmarks/suite/through_spark.py                                          random words, scripted answers
    python benchmarks/suite/through_spark.py --data DIRECTORY --part small [--only IMDB,FEV-8] [--json FILE]
    python benchmarks/suite/through_spark.py --model DIRECTORY --scale 0.001 --only FEV    a real model, on the CPU

For each query: rows, how many of them only one side has, questions that the model was asked on either side, and those of them
that Spark asked again. The two sides plan alone: Spark places filters and joins by its own rules, the local runner by the
planner's, so they may ask different numbers of questions for the same rows. Scripted answers are a fixed function of question
and texts, TRUE at `--rate`; with a model rows may differ where TRUE and FALSE weigh nearly the same. Seconds are by the clock,
with a scripted model those of everything else, the start of an engine for each query included.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from plan_runner import run_plan
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from sql_plan import Query, read_sql
from suite_queries import SuiteQuery, chosen_queries, read_queries
from suite_tables import random_tables, read_tables

import quail_spark
from quail_spark.conf import QuailConf
from quail_spark.engine.client import connect
from quail_spark.engine.config import EngineConfig
from quail_spark.engine.factory import make_evaluator
from quail_spark.errors import QuailError
from quail_spark.java_home import use_java
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import find_device
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.rules import optimize

IDLE = "30s"  # after which an engine that no query needs any more ends
SCRIPTED = "scripted://hash?rate={rate}&seed={seed}"
CONTEXT = PlanContext(Roofline(known_model("qwen2.5-0.5b"), find_device("cpu", cores=2)))
HEADING = (
    f"{'query':8} {'rows':>8} {'differ':>7} {'operators':>9} {'as UDF':>6} {'asked':>8} {'again':>6} {'local':>8}"
    f" {'Spark':>8} {'local':>8}"
)


@dataclass
class Side:
    """One side's run. `asked`: questions that the model answered; `again`: those of them that it had answered before."""

    rows: list[tuple]
    asked: int
    again: int
    seconds: float


@dataclass
class Compared:
    """A query on both sides. `differ`: rows that only one has; `operators`: AI operators of Spark's plan; `udfs`: whether AI
    calls are left to UDFs there."""

    query: SuiteQuery
    spark: Side
    local: Side
    differ: int
    operators: int
    udfs: bool


class ThroughSpark:
    """The suite in a Spark session, which it switches on, over `tables` written to `directory` as Parquet.

    `model`: None for scripted answers, TRUE at `rate`; each query has an engine of its own then, so that none remembers
    another's answers. Otherwise one engine serves all queries, on either side.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Mapping[str, pa.Table],
        directory: Path,
        *,
        rate: float = 0.3,
        seed: int = 0,
        model: str | None = None,
    ):
        self._spark, self._tables, self._model, self._rate, self._seed = spark, tables, model, rate, seed
        self._evaluator = make_evaluator(EngineConfig(model)) if model else None
        settings = {"device": "cpu", "progress": "false", "engine_idle_timeout": IDLE}
        quail_spark.enable(spark, model=model or self._script(0), **settings)
        for name, table in tables.items():
            pq.write_table(table, directory / f"{name}.parquet")
            spark.read.parquet(str(directory / f"{name}.parquet")).createOrReplaceTempView(name)

    def compared(self, query: SuiteQuery) -> Compared:
        """Run one query on both sides. Spark's errors come through."""
        read = read_sql(query.sql, self._tables)
        if self._model is None:
            self._spark.conf.set("spark.quail.model", self._script(self._number(query)))
        df = self._spark.sql(query.sql)
        plan = quail_spark.explain(df)
        spark, local = self._by_spark(df), self._locally(read, self._number(query))
        differ = differing(spark.rows, local.rows, in_order=bool(read.select.args.get("order")))
        operators = len(re.findall(r"^\d+\. AI ", plan, re.MULTILINE))
        return Compared(query, spark, local, differ, operators, "plain UDF" in plan)

    @staticmethod
    def _number(query: SuiteQuery) -> int:
        return 1 + list(read_queries()).index(query.name)

    def _script(self, number: int) -> str:
        """The scripted model of one query."""
        return SCRIPTED.format(rate=self._rate, seed=100 * self._seed + number)

    def _by_spark(self, df: DataFrame) -> Side:
        before, began = self._reported(), time.perf_counter()
        rows = [tuple(row) for row in df.collect()]
        seconds = time.perf_counter() - began
        again = sum(times - 1 for *_, times in self.calls()) if self._model is None else 0
        return Side(rows, self._reported() - before, again, seconds)

    def _locally(self, read: Query, number: int) -> Side:
        evaluator = self._evaluator or make_evaluator(EngineConfig(self._script(number)))
        began = time.perf_counter()
        rows, counts = run_plan(optimize(read.plan, CONTEXT), read.tables, evaluator.open)
        seconds = time.perf_counter() - began
        return Side(read.result(rows), sum(c.evaluations for c in counts), 0, seconds)

    def _reported(self) -> int:
        return sum(operator.evaluations for operator in quail_spark.report(self._spark).operators)

    def calls(self) -> list[tuple]:
        """What the scripted engine of the query before was asked: (template, texts, how often)."""
        model = self._spark.conf.get("spark.quail.model")
        client = connect(
            QuailConf.of_session(self._spark).engine(model=model, device="cpu"), self._spark.sparkContext.applicationId
        )
        try:
            return client.describe()["calls"]
        finally:
            client.close()


def differing(some: list[tuple], others: list[tuple], in_order: bool) -> int:
    """Rows that only one side has; `in_order`: places with different rows."""
    if in_order:
        return sum(a != b for a, b in zip_longest(some, others))
    return sum(((Counter(some) - Counter(others)) + (Counter(others) - Counter(some))).values())


def line(c: Compared) -> str:
    """A query's line of the table."""
    return (
        f"{c.query.name:8} {len(c.spark.rows):8,} {c.differ:7,} {c.operators:9} {'yes' if c.udfs else 'no':>6} {c.spark.asked:8,}"
        f" {c.spark.again:6,} {c.local.asked:8,} {c.spark.seconds:7.1f}s {c.local.seconds:7.1f}s"
    )


def as_json(found: list[Compared], refused: dict[str, str]) -> str:
    """All figures; of rows their number."""
    rows = []
    for each in found:
        sides = {
            name: asdict(side) | {"rows": len(side.rows)}
            for name, side in (("spark", each.spark), ("local", each.local))
        }
        rows.append(asdict(each) | {"query": each.query._asdict()} | sides)
    return json.dumps({"queries": rows, "refused": refused}, indent=1)


def local_session() -> SparkSession:
    """A new session on two cores of this machine."""
    use_java()
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    settings |= {"spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").appName("quail-spark suite")
    return builder.config(map=settings).getOrCreate().newSession()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of Parquet files; else random words")
    parser.add_argument("--part", default="small")
    parser.add_argument("--scale", type=float, default=0.02, help="share of the full rows; joins grow with its square")
    parser.add_argument("--model", help="a model's directory, GGUF file or hub id; else scripted answers")
    parser.add_argument("--rate", type=float, default=0.3, help="share of TRUE among scripted answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="ids, or beginnings of them: IMDB,FEV-8")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    if arguments.data:
        tables = read_tables(arguments.data, arguments.part, arguments.scale)
    else:
        tables = random_tables(arguments.seed, arguments.scale)
    spark = local_session()
    found: list[Compared] = []
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        options = {"rate": arguments.rate, "seed": arguments.seed, "model": arguments.model}
        suite = ThroughSpark(spark, tables, Path(directory), **options)
        print(HEADING)
        for query in chosen_queries(arguments.only):
            try:
                found.append(suite.compared(query))
            except (AnalysisException, QuailError) as error:  # Spark, or quail-spark, does not take it as it is written
                refused[query.name] = str(error)
                continue
            print(line(found[-1]), flush=True)
            if arguments.json:
                arguments.json.write_text(as_json(found, refused))
        spark.stop()
    for name, reason in refused.items():
        print(f"{name} can't run as it is written: {reason}")
    wrong = [each.query.name for each in found if each.differ]
    print(
        f"{len(found) - len(wrong)} of {len(found)} queries give the local runner's rows; others: {', '.join(wrong) or 'none'}"
    )
    return 1 if refused or (wrong and not arguments.model) else 0


if __name__ == "__main__":
    sys.exit(main())
