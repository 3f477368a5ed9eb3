"""AI-SQL over Delta tables, in a Spark of its own that has Delta Lake's jars."""

import json
import random
from pathlib import Path

import pytest

from .delta_checks import CHECKS
from .spark_submit import submit


@pytest.fixture(scope="module")
def outcome(tmp_path_factory) -> dict[str, str]:
    """What went wrong, by check. Skips where Delta Lake can't be had."""
    seed = random.randrange(10**6)
    home = tmp_path_factory.mktemp("delta")
    done = submit(Path(__file__).with_name("delta_checks.py"), str(seed), cwd=home, delta=True)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1]) | {"seed": str(seed)}


@pytest.mark.parametrize("name", CHECKS)
def test_delta(name, outcome):
    assert name not in outcome, f"seed {outcome['seed']}:\n{outcome[name]}"
