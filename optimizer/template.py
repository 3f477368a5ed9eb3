"""Prompt templates: text with `{0}`, `{1}`, … for arguments and `{{`, `}}` for braces."""

import re
from dataclasses import dataclass

from .errors import PromptError

_NUMBER = re.compile(r"\s*[0-9]+\s*")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True)
class Literal:
    """Text that stands as it is."""

    text: str


@dataclass(frozen=True)
class Placeholder:
    """The place of argument `index` (from 0)."""

    index: int


def parse_template(template: str) -> tuple[Literal | Placeholder, ...]:
    """Split a template into text and placeholders; adjacent text is one `Literal`, empty text is dropped.

    Raises PromptError for a lone brace or a placeholder that is not a number.
    """
    parts: list[Literal | Placeholder] = []
    text = ""
    end = 0
    for match in _TOKEN.finditer(template):
        text += template[end : match.start()]
        end = match.end()
        token = match.group()
        if token in ("{{", "}}"):
            text += token[0]
        elif match.group(1) is None:
            raise PromptError(
                f"lone {token!r} at character {match.start()} of the template {template!r}; write {token * 2!r} for a brace"
            )
        elif not _NUMBER.fullmatch(match.group(1)):
            raise PromptError(
                f"placeholder {token!r} in the template {template!r} is not a number; accepted: {{0}}, {{1}}, …, or a column's name where the SQL front end resolves it"
            )
        else:
            if text:
                parts.append(Literal(text))
                text = ""
            parts.append(Placeholder(int(match.group(1))))
    text += template[end:]
    if text:
        parts.append(Literal(text))
    return tuple(parts)


def placeholders(template: str) -> tuple[int, ...]:
    """The distinct placeholder indices in order of first use."""
    return tuple(dict.fromkeys(p.index for p in parse_template(template) if isinstance(p, Placeholder)))


def check_arguments(template: str, count: int) -> None:
    """Raise PromptError when a placeholder has no argument (there are `count`). Unused arguments are allowed."""
    missing = [index for index in placeholders(template) if index >= count]
    if missing:
        names = ", ".join(f"{{{index}}}" for index in missing)
        raise PromptError(
            f"the template {template!r} uses {names} but has {count} argument{'' if count == 1 else 's'}; add the argument or remove the placeholder"
        )
