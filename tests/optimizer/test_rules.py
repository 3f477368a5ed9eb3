"""Each rule against its fixtures: a plan before and after it, or the error it raises."""

from pathlib import Path

import pytest
from plan_text import read_context, read_plan, read_tables, sections

from quail_spark.optimizer.errors import QuailError
from quail_spark.optimizer.logical import render
from quail_spark.optimizer.rules import RULES, optimize

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.txt"))
BY_NAME = {rule.__name__: rule for rule in RULES} | {"optimize": optimize}


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixture(path):
    given = sections(path)
    rule = BY_NAME[path.stem.split("-")[0]]
    tables, context = read_tables(given["relations"]), read_context(given.get("context", ""))
    before = read_plan(given["before"], tables)
    assert render(before) == given["before"], "the fixture is not as a plan is written"
    if "error" in given:
        with pytest.raises(QuailError) as raised:
            rule(before, context)
        assert given["error"] == str(raised.value)
        return
    after = rule(before, context)
    assert render(after) == given["after"]
    assert render(read_plan(given["after"], tables)) == given["after"]


def test_every_rule_has_a_fixture():
    assert {path.stem.split("-")[0] for path in FIXTURES} == set(BY_NAME)
