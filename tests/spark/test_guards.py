"""What a condition keeps from a question: it is not asked, and its arguments, which may raise, are not computed."""

import random

import pytest

from .engine_calls import calls
from .oracle import answer

ROWS = "(1, 2, 'kept'), (2, 0, 'kept too'), (3, 5, 'not'), (4, NULL, 'not either'), (5, 0, NULL)"


@pytest.fixture(params=[True, False], ids=["planned", "unplanned"])
def table(spark, request):
    spark.sql(f"CREATE OR REPLACE TEMP VIEW guarded AS SELECT * FROM VALUES {ROWS} AS v(id, n, text)")
    spark.conf.set("spark.quail.optimizer.enabled", str(request.param).lower())
    yield spark
    spark.conf.set("spark.quail.optimizer.enabled", "true")


def question(tag: str, argument: str = "text") -> str:
    return f"AI.IF(PROMPT('{{0}} {tag}', {argument}))"


# Form, and the ids that it asks about.
FORMS = {
    "CASE WHEN n > 1 THEN {q} END": {1, 3},
    "CASE WHEN n > 1 THEN TRUE WHEN n = 0 THEN {q} WHEN id = 4 THEN FALSE ELSE {q} END": {2},
    "CASE n WHEN 5 THEN {q} ELSE FALSE END": {3},
    "if(n > 1, {q}, FALSE)": {1, 3},
    "if(n > 1, FALSE, {q})": {2, 4},
    "n > 1 AND {q}": {1, 3, 4},
    "n > 1 OR {q}": {2, 4},
    "NOT (n IS NULL OR n = 0 OR {q})": {1, 3},
    "coalesce(n > 1, {q})": {4},
    "CASE WHEN n > 1 THEN CASE WHEN id = 1 THEN {q} ELSE n = 5 END END": {1},
    "CASE WHEN {q} THEN n > 1 END": {1, 2, 3, 4},
    "CASE WHEN rand() < 2 THEN {q} END": {1, 2, 3, 4},
}


STATEMENTS = {
    "SELECT": "SELECT id, {f} AS x FROM guarded",
    "WHERE": "SELECT id, 0 AS x FROM guarded WHERE ({f}) IS NOT FALSE",
    "FILTER": "SELECT count(*) FILTER (WHERE {f}) AS id, max({f}) AS x FROM guarded GROUP BY id % 1",
    "ORDER BY": "SELECT id, 0 AS x FROM guarded ORDER BY {f} NULLS FIRST, id",
}
OTHERS = [form for form in FORMS if "rand" not in form]  # FILTER takes no such condition
CASES = [("SELECT", form) for form in FORMS] + [(p, f) for p in list(STATEMENTS)[1:] for f in random.sample(OTHERS, 2)]


def test_only_rows_that_come_to_a_question_are_asked(table):
    """Every form in a SELECT list, and two, drawn, in each of the other places; rows as of known answers."""
    planned = table.conf.get("spark.quail.optimizer.enabled")
    texts = {row.id: row.text for row in table.table("guarded").collect()}
    for number, (place, form) in enumerate(CASES):
        tag = f"guarded {planned} {number}"
        known = {id: answer(f"{{0}} {tag}", text) for id, text in texts.items()}
        value = f"CASE id {' '.join(f'WHEN {id} THEN {x}' for id, x in known.items() if x is not None)} END"
        got = table.sql(STATEMENTS[place].format(f=form.format(q=question(tag)))).collect()
        assert got == table.sql(STATEMENTS[place].format(f=form.format(q=value))).collect(), (place, form)
        asked = {text for _, (text,) in calls(table, tag)}
        assert asked == {texts[id] for id in FORMS[form]} - {None}, (place, form)


@pytest.mark.parametrize(
    "form", ["CASE WHEN n <> 0 THEN {q} END", "n = 0 OR {q}", "n <> 0 AND {q}", "if(n = 0, NULL, {q})"]
)
def test_arguments_stay_behind_their_guard(table, form):
    asked, safe = question("behind", "10 / n"), question("behind", "CASE WHEN n <> 0 THEN 10 / n END")
    results = [table.sql(f"SELECT id, {form.format(q=q)} AS x FROM guarded").collect() for q in (asked, safe)]
    assert sorted(results[0]) == sorted(results[1])
