"""The suite's queries in plain Python: every combination of rows, every condition. And small random tables for them."""

import random
from itertools import product

import pyarrow as pa

from quail_spark.engine.scripted import scripted_answer
from quail_spark.optimizer.logical import AiFilter, AiJoin, AiPredicate, Plan, Relation, nodes

WORDS = ["film", "actor", "court", "rule", "fever", "claim", "test", "a", "it"]
TEXTS = {  # by source, its columns of text
    "reviews": ("review",),
    "aspects": ("aspect", "description"),
    "reports": ("text",),
    "case_reports": ("text",),
    "reaction_terms": ("term",),
    "claims": ("claim",),
    "passages": ("text",),
    "contexts": ("context",),
    "citations": ("passage",),
}


def small_tables(rng: random.Random, rows: int = 6) -> dict[str, pa.Table]:
    """A few rows each, with NULLs, texts that are there twice, and keys without a partner."""

    def text() -> str | None:
        return None if rng.random() < 0.1 else " ".join(rng.choices(WORDS, k=rng.randint(1, 3)))

    found = {}
    for source, columns in TEXTS.items():
        count = rng.randint(2, rows)
        found[source] = pa.table(
            {"id": [f"{source}{i}" for i in range(count)]}
            | {column: pa.array([text() for _ in range(count)], pa.string()) for column in columns}
        )
    links = [(f"claims{rng.randrange(rows)}", f"passages{rng.randrange(rows)}") for _ in range(2 * rows)] + [
        (None, None)
    ]
    found["gold"] = pa.table({"claim": [a for a, _ in links], "passage": [b for _, b in links]})
    turns = [(f"run{i % 3}", 6 + i // 3, rng.randint(1, 99), " ".join(rng.choices(WORDS, k=5))) for i in range(30)]
    found["snapshots"] = pa.table(
        dict(zip(("run", "turn", "characters", "history"), zip(*turns, strict=True), strict=True))
    )
    return found


def predicates(plan: Plan) -> list[AiPredicate]:
    return [p for node in nodes(plan) if isinstance(node, AiFilter | AiJoin) for p in node.predicates]


class Plain:
    """`rows`: combinations of rows (numbers by relation) for which all conditions hold. `prompts`: what may be asked: a filter of
    any row, a join of rows that meet."""

    def __init__(self, plan: Plan, tables: dict[str, pa.Table], rate: float):
        self._rate = rate
        self._values = {name: table.to_pydict() for name, table in tables.items()}
        self._keys = [pair for node in nodes(plan) if isinstance(node, AiJoin) for pair in node.keys]
        self._predicates = predicates(plan)
        names = [node.name for node in nodes(plan) if isinstance(node, Relation)]
        every = [
            dict(zip(names, numbers, strict=True)) for numbers in product(*(range(tables[n].num_rows) for n in names))
        ]
        meeting = [row for row in every if all(self._equal(pair, row) for pair in self._keys)]
        asked = [(p, row) for p in self._predicates for row in (meeting if len(p.relations) > 1 else every)]
        self.prompts = {prompt for p, row in asked if (prompt := self._prompt(p, row))}
        self.rows = [row for row in meeting if all(self._true(p, row) for p in self._predicates)]

    def _value(self, ref, row: dict):
        return self._values[ref.relation][ref.column][row[ref.relation]]

    def _equal(self, pair, row: dict) -> bool:
        left, right = (self._value(ref, row) for ref in pair)
        return left is not None and left == right

    def _prompt(self, predicate: AiPredicate, row: dict) -> tuple | None:
        texts = tuple(self._value(text, row) for text in predicate.used)
        return None if None in texts else (predicate.template, texts)

    def _true(self, predicate: AiPredicate, row: dict) -> bool:
        prompt = self._prompt(predicate, row)
        return prompt is not None and scripted_answer(*prompt, rate=self._rate)
