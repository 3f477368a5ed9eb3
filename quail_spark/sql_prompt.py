"""Prompts put together from parts, as other engines write them → prompt('… {0} …', column, …). Driver-side.

('…', c), STRUCT('…', c), CONCAT('…', c) and '…' || c mean the same: literals are the template's text, everything else
an argument.
"""

import re
from collections.abc import Callable, Collection

from .sql_tokens import Range, Tokens

WORDS = ("STRUCT", "CONCAT")
NO_PARTS = ("PROMPT",)
SUBQUERY = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")  # what a query in brackets begins with
_BRACES = re.compile(r"\\(?:17[35]|u007[bd]|U0000007[bd])|\\.|[{}]", re.IGNORECASE | re.DOTALL)


def prompt_parts(tokens: Tokens, span: Range) -> list[Range] | None:
    """The parts of a prompt, in order; None when it is not put together from parts of which one is a literal."""
    parts = _parts(tokens, span)
    if any(tokens.upper(first) in NO_PARTS and tokens.upper(first + 1) == "(" for first, _ in parts):
        return None
    return parts if any(is_literal(tokens, part) for part in parts) else None


def is_literal(tokens: Tokens, span: Range) -> bool:
    """Whether a range is a string, or several side by side, which Spark joins."""
    return span[1] > span[0] and all(token.is_string for token in tokens.list[slice(*span)])


def parts_sql(
    tokens: Tokens,
    parts: list[Range],
    inline_prompt: bool,
    formatted: Collection[str] | None,
    rewrite: Callable[[str], str],
) -> str:
    """prompt(…) for these parts, or the expression that it stands for. `rewrite` is for calls within arguments."""
    template, arguments = [], []
    for part in parts:
        if is_literal(tokens, part):
            template += [_text(token, formatted) for token in tokens.list[slice(*part)]]
        else:
            number = f"{{{len(arguments)}}}"
            template.append(f"'{number if formatted is None else f'{{{number}}}'}'")
            arguments.append(rewrite(tokens.source(part)))
    text = " ".join(template)
    if not inline_prompt:
        return f"prompt({', '.join([text, *arguments])})"
    casts = ", ".join(f"CAST({argument} AS STRING)" for argument in arguments)
    array = f"array({casts})" if arguments else "CAST(array() AS ARRAY<STRING>)"
    return f"named_struct('template', {text}, 'args', {array})"


def _parts(tokens: Tokens, span: Range) -> list[Range]:
    first, last = span
    if last - first > 2 and tokens.upper(last - 2) == "AS":  # STRUCT('…' AS name)
        return _parts(tokens, (first, last - 2))
    if pieces := _split(tokens, span):
        return [part for piece in pieces for part in _parts(tokens, piece)]
    opening = first + (tokens.upper(first) in WORDS)
    if tokens.upper(opening + 1) in SUBQUERY and opening == first:
        return [span]
    if tokens.upper(opening) == "(" and tokens.closing.get(opening) == last - 1:
        return [part for piece in tokens.arguments(opening) for part in _parts(tokens, piece)]
    return [span]


def _split(tokens: Tokens, span: Range) -> list[Range]:
    """What stands between `||` outside of brackets and CASE … END; [] when there is none."""
    first, last = span
    pieces, index, cases = [], first, 0
    while index < last:
        word = tokens.upper(index)
        cases += (word == "CASE") - (word == "END" and cases > 0)
        if word == "||" and not cases:
            pieces.append((first, index))
            first = index + 1
        index = tokens.closing.get(index, index) + 1
    return [*pieces, (first, last)] if pieces else []


def _text(token, formatted: Collection[str] | None) -> str:
    """A literal whose braces are text, not placeholders; before Python's formatter those that it will halve."""
    if formatted is not None:
        return re.sub(r"\{\{|\}\}", lambda brace: brace[0] * 2, token.text)
    if token.is_raw:
        return re.sub(r"[{}]", lambda brace: brace[0] * 2, token.text)
    return _BRACES.sub(_doubled, token.text)


def _doubled(found: re.Match) -> str:
    """A brace, or an escape for one, twice; any other escape as it is."""
    is_other = found[0][0] == "\\" and len(found[0]) == 2
    return found[0] if is_other else found[0] * 2
