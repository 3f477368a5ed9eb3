"""The queries of the suite by id, from the SQL files in `queries/`: `-- ID: shape`, then one statement."""

import re
from pathlib import Path
from typing import NamedTuple

GROUPS = ("imdb", "bio", "fev", "lep", "agent")
_QUERY = re.compile(r"^-- ([A-Z]+-\d+): (.*)\n((?:.+\n)+)", re.MULTILINE)


class SuiteQuery(NamedTuple):
    """`shape`: F is an AI filter, J an AI join, → passes survivors on."""

    name: str
    group: str
    shape: str
    sql: str


def read_queries() -> dict[str, SuiteQuery]:
    """All queries, in the order of the files."""
    found = {}
    for group in GROUPS:
        text = (Path(__file__).parent / "queries" / f"{group}.sql").read_text(encoding="utf-8")
        for name, shape, sql in _QUERY.findall(text):
            found[name] = SuiteQuery(name, group, shape, sql.strip().rstrip(";"))
    return found


def chosen_queries(only: str | None) -> list[SuiteQuery]:
    """All, or those whose id is, or begins with, one of `only`."""
    wanted = only.split(",") if only else []
    return [
        query
        for name, query in read_queries().items()
        if not only or any(name == each or name.startswith(f"{each}-") for each in wanted)
    ]
