"""`input_file_name()` beside AI calls: the name of the file that the row is in, though many small files are read at once."""

import random

import pytest

from .oracle import answer

NEW, ODD = "{0} is new", "{0} is odd"


@pytest.fixture
def files(spark, tmp_path) -> dict[int, tuple[str, str]]:
    """The view `rows` over five files that one task reads; the file and the text of each id."""
    texts = [f"text {random.randrange(10**6)}" for _ in range(60)]
    frame = spark.createDataFrame(list(enumerate(texts)), "id int, text string")
    for start in range(0, 60, 12):
        part = frame.filter(f"id BETWEEN {start} AND {start + 11}").coalesce(1)
        part.write.mode("append").parquet(str(tmp_path / "rows"))
    spark.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("rows")
    names = spark.sql("SELECT id, input_file_name() FROM rows").collect()
    assert len({name for _, name in names}) == 5
    return {i: (name, texts[i]) for i, name in names}


QUERIES = {
    "filter": f"SELECT id, input_file_name() FROM rows WHERE id > 3 AND AI.IF(PROMPT('{NEW}', text))",
    "expression": f"SELECT id, upper(input_file_name()) FROM rows WHERE id > 3 AND AI.IF(PROMPT('{NEW}', text))",
    "distinct": f"SELECT DISTINCT 0, input_file_name() FROM rows WHERE AI.IF(PROMPT('{NEW}', text))",
    "select": f"SELECT id, input_file_name(), AI.IF(PROMPT('{ODD}', text)) FROM rows WHERE AI.IF(PROMPT('{NEW}', text))",
    "below": f"""SELECT id, input_file_name() FROM
        (SELECT id, AI.IF(PROMPT('{ODD}', text)) AS odd FROM rows WHERE AI.IF(PROMPT('{NEW}', text))) WHERE odd""",
}
EXPECTED = {
    "filter": lambda i, file, text: i > 3 and answer(NEW, text) and (i, file),
    "expression": lambda i, file, text: i > 3 and answer(NEW, text) and (i, file.upper()),
    "distinct": lambda i, file, text: answer(NEW, text) and (0, file),
    "select": lambda i, file, text: answer(NEW, text) and (i, file, answer(ODD, text)),
    "below": lambda i, file, text: answer(NEW, text) and answer(ODD, text) and (i, file),
}


@pytest.mark.parametrize("planned", ["true", "false"])
def test_the_file_of_the_row(planned, spark, files):
    spark.conf.set("spark.quail.optimizer.enabled", planned)
    for name, query in QUERIES.items():
        expected = {EXPECTED[name](i, *file) for i, file in files.items()} - {False}
        assert set(map(tuple, spark.sql(query).collect())) == expected, name
