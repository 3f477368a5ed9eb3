"""How often questions were TRUE earlier in this application, for estimates. Driver-side.

Nothing that a prompt depends on is decided by it: the same query asked again gets the same prompts.
"""

from collections.abc import Mapping

from quail_spark.engine.stats import read_stats, total_operators

from .catalyst import planned
from .explaining import questions

Answered = Mapping[str, tuple[int, int]]  # by a question in the query's words: its answers, and the TRUE ones


def earlier_answers(application: str) -> Answered:
    """As far as the engines on the driver's machine tell: all of them for a local master."""
    found: dict[str, tuple[int, int]] = {}
    for name, totals in total_operators(read_stats(application)).items():
        for words, asked, passed in zip(questions_of(name, totals), totals["asked"], totals["passed"], strict=False):
            before = found.get(words, (0, 0))
            found[words] = (before[0] + asked, before[1] + passed)
    return found


def questions_of(name: str, totals: dict) -> list[str]:
    """The questions of an operator of an engine's totals: in the words of the query that this driver planned, else the templates."""
    known = planned.get(planned_name(name))
    if known is None or len(known.arguments) != len(totals["templates"]):
        return totals["templates"]
    return questions(known)


def planned_name(name: str) -> str:
    """An operator's name without the number that tells it from others of the name."""
    return name.split(" (")[0]
