"""Templates: text, placeholders, braces."""

import pytest

from quail_spark.optimizer.errors import PromptError
from quail_spark.optimizer.template import Literal, Placeholder, parse_template, placeholders


def test_text_placeholders_and_braces():
    assert parse_template("a {{b}} {1}{ 0 } c") == (Literal("a {b} "), Placeholder(1), Placeholder(0), Literal(" c"))
    assert placeholders("{1} {0} {1}") == (1, 0)


@pytest.mark.parametrize("digit", ["²", "٣", "⑤", "Ⅷ", "", "-1", "1.0"])
def test_a_placeholder_is_a_number_in_plain_digits(digit):
    with pytest.raises(PromptError, match="accepted: "):
        parse_template(f"a {{{digit}}}")


@pytest.mark.parametrize("template", ["{", "a}", "{{}", "{}}", "{{{0"])
def test_lone_braces(template):
    with pytest.raises(PromptError):
        parse_template(template)
