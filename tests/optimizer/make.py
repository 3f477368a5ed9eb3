"""What several tests of planning make."""

import random

from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import find_device
from quail_spark.optimizer.logical import AiPredicate, Relation
from quail_spark.optimizer.model_spec import known_model
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.statistics import Number, TableStats, TextStats

H200 = Roofline(known_model("qwen3-4b"), find_device("H200"), "fp8")


def context(**changes) -> PlanContext:
    return PlanContext(H200, **changes)


def table(rows: float, **tokens: float) -> TableStats:
    texts = {column: TextStats(Number(float(n), "column statistics")) for column, n in tokens.items()}
    return TableStats(Number(float(rows), "table statistics"), texts)


def relation(name: str, rows: float, **tokens: float) -> Relation:
    return Relation(name, table(rows, **tokens))


def random_tables(rng: random.Random, names: str) -> dict[str, TableStats]:
    return {
        name: table(rng.choice([3, 12, 80, 500]), t=rng.choice([6, 60, 900]), u=rng.choice([5, 300])) for name in names
    }


def random_filter(rng: random.Random, name: str, number: int) -> AiPredicate:
    column = rng.choice("ttu")
    return AiPredicate.of(f"{{{name}.{column}}} is {number}", rng.choice([0.03, 0.4, 0.9]))


def random_join(rng: random.Random, a: str, b: str, number: int) -> AiPredicate:
    hint = rng.choice([None, None, None, a])
    return AiPredicate.of(
        f"{{{a}.t}} goes {'with ' * rng.randint(1, 30)}{number} {{{b}.t}}", rng.choice([0.002, 0.05, 0.5]), hint
    )
