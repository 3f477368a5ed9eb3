"""The suite's tables: from Parquet files, or of random words in the same lengths. Names of columns are those of the files."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# The file of each source below a directory of families; {part} is a part of the data, such as dev or small.
FILES = {
    "reviews": "imdb/{part}/reviews.parquet",
    "aspects": "imdb/{part}/aspects.parquet",
    "reports_fulltext": "biodex/{part}/reports_fulltext.parquet",
    "case_reports_ccby": "biodex/{part}/case_reports_ccby.parquet",
    "abstracts": "biodex/{part}/abstracts.parquet",
    "reaction_terms": "biodex/{part}/reaction_terms.parquet",
    "claims": "fever/{part}/claims.parquet",
    "passages": "fever/{part}/passages.parquet",
    "contexts": "legal/{part}/contexts.parquet",
    "citations": "legal/{part}/passages.parquet",
    "turns": "swe/{part}/turns.parquet",
}
# Rows at scale 1.
ROWS = {"reviews": 5000, "aspects": 12, "reports": 986, "case_reports": 86, "reaction_terms": 1127, "claims": 500}
ROWS |= {"passages": 287, "contexts": 500, "citations": 433, "snapshots": 1772}
CHARACTERS = {  # mean and most, of texts
    "reviews": (1283, 12_000),
    "aspects": (36, 57),
    "reports": (2500, 43_000),
    "case_reports": (15_000, 43_000),
    "reaction_terms": (20, 58),
    "claims": (79, 350),
    "passages": (927, 16_000),
    "contexts": (1754, 2500),
    "citations": (154, 670),
}
MOST_CHARACTERS = 64_000  # of a snapshot: 16,000 tokens
TURNS, TURN_CHARACTERS = 12, 1000
WORDS = [
    "film",
    "actor",
    "ending",
    "court",
    "rule",
    "patient",
    "fever",
    "claim",
    "agent",
    "test",
    "plain",
    "of",
    "a",
    "it",
]


def read_tables(
    directory: Path, part: str, scale: float, files: Mapping[str, str] | None = None
) -> dict[str, pa.Table]:
    """From Parquet. `files`: other paths for some of `FILES`. `scale` takes a share of the rows of every table but aspects."""
    files = files or {}

    def read(name: str, *columns: str) -> pa.Table:
        path = Path(files.get(name) or directory / FILES[name].format(part=part))
        if not path.exists() and name == "case_reports_ccby":  # not in every part
            return pa.table({column: pa.array([], pa.string()) for column in columns})
        return pq.read_table(path, columns=list(columns))

    full_texts = pa.concat_tables([read("reports_fulltext", "id", "text"), read("case_reports_ccby", "id", "text")])
    claims = read("claims", "id", "claim", "gold_passage_ids").slice(0, _rows("claims", scale))
    found = {name: read(name, *columns) for name, columns in _PLAIN.items()}
    found |= {"case_reports": full_texts, "reports": pa.concat_tables([full_texts, read("abstracts", "id", "text")])}
    found["passages"] = _gold_first(read("passages", "id", "text"), claims)
    found["snapshots"] = _snapshots(read("turns", "trajectory_id", "turn_index", "text"), _rows("snapshots", scale))
    found = {name: table.slice(0, _rows(name, scale)) for name, table in found.items()}
    pairs = [
        (c, p)
        for c, golds in zip(*claims.select(["id", "gold_passage_ids"]).to_pydict().values(), strict=True)
        for p in golds
    ]
    gold = {"claim": [claim for claim, _ in pairs], "passage": [passage for _, passage in pairs]}
    return found | {"claims": claims.select(["id", "claim"]), "gold": _table(gold)}


_PLAIN = {
    "reviews": ("id", "review"),
    "aspects": ("id", "aspect", "description"),
    "reaction_terms": ("id", "term"),
    "contexts": ("id", "context"),
    "citations": ("id", "passage"),
}
_TEXT = {"reports": "text", "case_reports": "text", "claims": "claim", "passages": "text"}


def random_tables(seed: int, scale: float) -> dict[str, pa.Table]:
    """Random words in the files' lengths, log-normal; for machines without the files, and for tests."""
    rng = np.random.default_rng(seed)

    def text(characters: float) -> str:
        return " ".join(rng.choice(WORDS, max(1, round(characters / 5))).tolist()) + f" {rng.integers(1 << 40)}"

    found = {}
    for name, (mean, most) in CHARACTERS.items():
        rows = _rows(name, scale)
        lengths = np.clip(rng.lognormal(np.log(mean) - 0.18, 0.6, rows), 5, most)
        column = _TEXT.get(name) or _PLAIN[name][-1]
        columns = {"id": [f"{name}-{i}" for i in range(rows)], column: list(map(text, lengths))}
        if name == "aspects":
            columns["aspect"] = [words.split()[0] for words in columns[column]]
        found[name] = _table(columns)
    turns = [(f"run-{i // TURNS}", i % TURNS, text(TURN_CHARACTERS)) for i in range(_rows("snapshots", scale))]
    columns = ("trajectory_id", "turn_index", "text")
    found["snapshots"] = _snapshots(_table(dict(zip(columns, zip(*turns, strict=True), strict=True))), len(turns))
    claims, passages = (found[name]["id"].to_pylist() for name in ("claims", "passages"))
    gold = {"claim": claims * 2, "passage": rng.choice(passages, 2 * len(claims)).tolist()}
    return found | {"gold": _table(gold)}


def _table(columns: Mapping[str, list]) -> pa.Table:
    return pa.table({name: list(values) for name, values in columns.items()})


def _rows(name: str, scale: float) -> int:
    return ROWS[name] if name == "aspects" else max(2, round(ROWS[name] * scale))


def _gold_first(passages: pa.Table, claims: pa.Table) -> pa.Table:
    """Passages of the claims before the others, so that a few rows still match."""
    gold = set(claims["gold_passage_ids"].combine_chunks().flatten().to_pylist())
    known = passages["id"].to_pylist()
    return passages.take(sorted(range(len(known)), key=lambda i: known[i] not in gold))


def _snapshots(turns: pa.Table, count: int) -> pa.Table:
    """Snapshot k of a run: all its turns up to k, up to `MOST_CHARACTERS` characters."""
    columns: dict[str, list] = {"run": [], "turn": [], "characters": [], "history": []}
    for row in _first(_growing(turns), count):
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
    return _table(columns)


def _growing(turns: pa.Table) -> Iterator[tuple[str, int, int, str]]:
    run, history = None, ""
    for batch in turns.sort_by([("trajectory_id", "ascending"), ("turn_index", "ascending")]).to_batches():
        for row in batch.to_pylist():
            history = row["text"] if row["trajectory_id"] != run else history + row["text"]
            run = row["trajectory_id"]
            if len(history) <= MOST_CHARACTERS:
                yield run, row["turn_index"], len(history), history


def _first(rows: Iterator[tuple], count: int) -> Iterator[tuple]:
    for _, row in zip(range(count), rows, strict=False):
        yield row
