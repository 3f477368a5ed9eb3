"""SQL with AI calls, and the same SQL with a plain condition in the place of each, over tables made for it.

`[a]` stands for a question about one text and `[a, b]` about two. The model `scripted://overlap` answers them by common words,
which is written in SQL as well: Spark itself is the oracle.
"""

import re
from collections import Counter

NO_CROSS_JOINS = {"spark.sql.crossJoin.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"}
SETTINGS = [
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.caseSensitive": "true"},
    NO_CROSS_JOINS,
    {"spark.sql.adaptive.enabled": "false"},
    {"spark.sql.execution.arrow.useLargeVarTypes": "true"},
    {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"},
    {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.shuffle.partitions": "5"},
    {"spark.sql.ansi.doubleQuotedIdentifiers": "true"},
    {"spark.sql.cbo.enabled": "true", "spark.sql.cbo.joinReorder.enabled": "true"},
    {"spark.sql.codegen.wholeStage": "false", "spark.sql.parquet.enableVectorizedReader": "false"},
    {},
]
TABLES = ("t", "u", "e", "e2")
ROWS = """(1, 'red car', 'blue', 1, 'g'), (2, 'a blue bike', 'red', 2, 'g'), (3, NULL, 'red', 3, 'h'), (4, 'Red!  RED', '', NULL, 'h'),
    (5, '', 'red red', 5, NULL), (6, 'green', 'green tea', 6, 'g'), (7, 'red car', 'blue', 1, 'g'), (8, 'tea 😀', '😀', 8, 'i'),
    (9, NULL, NULL, NULL, NULL)"""
WORDS = "regexp_extract_all(lower(CAST({} AS STRING)), '(?U)\\\\w+', 0)"


def create_tables(spark) -> None:
    """Tables in Parquet: t and u with texts, NULLs and duplicates, e empty, e2 of CHAR and VARCHAR."""
    for name in TABLES:
        spark.catalog.dropTempView(name)  # would hide the table
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    spark.sql(
        "CREATE TABLE t USING parquet AS SELECT *, array(a, b) AS arr, named_struct('x', a, 'y', n) AS st, map('k', a) AS m, "
        "CAST(a AS BINARY) AS bin, DATE'2020-01-01' + id AS d, CAST(n AS DECIMAL(10, 2)) AS dcm, TIMESTAMP'2020-01-05 12:00:00' AS ts "
        f"FROM VALUES {ROWS} AS v(id, a, b, n, grp)"
    )
    spark.sql(
        "CREATE TABLE u USING parquet AS SELECT * FROM VALUES (1, 'red', 1), (2, 'car tea', 2), (3, NULL, 3), (4, 'zzz', NULL), "
        "(2, 'car tea', 2) AS v(id, a, n)"
    )
    spark.sql("CREATE TABLE e (id INT, a STRING) USING parquet")
    spark.sql("CREATE TABLE e2 (id INT, c CHAR(12), v VARCHAR(20)) USING parquet")
    spark.sql("INSERT INTO e2 VALUES (1, 'red', 'red'), (2, 'blue', 'x'), (3, NULL, NULL), (4, 'red car', '  red ')")


def drop_tables(spark) -> None:
    """Drop what `create_tables` created."""
    for name in TABLES:
        spark.sql(f"DROP TABLE {name}")


def ai_sql(query: str) -> str:
    """The query with AI calls in the places of its questions."""
    return _written(query, "AI.IF(PROMPT('red {{0}}', {}))", "AI.IF(PROMPT('{{0}} {{1}}', {}, {}))")


def plain_sql(query: str) -> str:
    """The query with plain conditions in the places of its questions."""
    return _written(query, f"arrays_overlap({WORDS}, array('red'))", f"arrays_overlap({WORDS}, {WORDS})")


def _written(query: str, one: str, two: str) -> str:
    """Innermost questions first, since one may stand in an argument of another."""

    def condition(match: re.Match) -> str:
        depth, cut = 0, None
        for place, character in enumerate(match[1]):
            depth += (character == "(") - (character == ")")
            cut = place if character == "," and not depth else cut
        return one.format(match[1]) if cut is None else two.format(match[1][:cut], match[1][cut + 1 :])

    while "[" in query:
        query = re.sub(r"\[([^\[\]]*)\]", condition, query)
    return query


def result(frame) -> tuple[Counter, list]:
    """Its rows as a multiset, and the types of its columns."""
    return Counter(repr(row) for row in map(tuple, frame.collect())), [field.dataType for field in frame.schema]
