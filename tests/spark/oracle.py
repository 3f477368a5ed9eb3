"""The scripted model's answers, computed in the test, for rows of plain Python."""

from quail_spark.engine.scripted import scripted_answer
from quail_spark.optimizer.template import placeholders


def answer(template: str, *arguments: str | None) -> bool | None:
    """What `ai_if(prompt(template, arguments…))` is under the model of conftest.py."""
    texts = [arguments[i] for i in placeholders(template)]
    return None if None in texts else scripted_answer(template, texts, rate=0.5, seed=7)
