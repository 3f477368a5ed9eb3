"""Options of an AI call as they stand in SQL: {'selectivity': 0.1} or map('selectivity', 0.1) → a map of strings. Driver-side."""

import re
from collections.abc import Callable

from quail_spark.optimizer.errors import ConfigError, SqlError
from quail_spark.optimizer.options import parse_options

from .sql_tokens import Range, Tokens

ACCEPTED = "{'selectivity': 0.1, 'anchor': 'alias'} or map('selectivity', 0.1, 'anchor', 'alias')"
_NUMBER = re.compile(r"[+-]?\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_CAST = re.compile(r"CAST\(.* AS STRING\)", re.IGNORECASE | re.DOTALL)


MAX_ERROR_RATIO = "max_error_ratio"
IGNORED = ("CONNECTION_ID", "ENDPOINT", "MODEL_PARAMS", "MODEL", "REQUEST_TYPE")  # arguments of other engines
SILENT = ("OPTIMIZATION_MODE", "EMBEDDINGS")  # whose answers are approximate without them; here they are exact


def options_sql(
    tokens: Tokens,
    span: Range | None,
    named: list[tuple[str, Range]],
    anchor_numbers: Callable[[str], str | None],
) -> str:
    """`map('name', 'value', …)` for the options in `span` and those `named` by `name => value`; "" without any.

    Literal values are checked; others are cast to strings. `anchor_numbers` gives the placeholders of the table or column that the option `anchor` names, where it can tell.
    Raises SqlError for another form, ConfigError for an unknown name or a bad value.
    """
    if span is None and not named:
        return ""
    where = tokens.position(tokens[(span or named[0][1])[0]].start)
    literal: dict[str, str | None] = {}
    written = []
    entries = _entries(tokens, span, where) if span else []
    for name, value_span in [(_name(tokens, name, where), value) for name, value in entries] + named:
        if name in literal:
            raise ConfigError(f"option {name!r} is given twice ({where} of the SQL)")
        value, text = _value(tokens, value_span)
        if name == "anchor" and value is not None and (numbers := anchor_numbers(value)):
            value, text = numbers, f"'{numbers}'"
        literal[name] = value
        written += [f"'{name}'", text]
    try:
        parse_options(literal)
    except ConfigError as error:
        raise ConfigError(f"{error} ({where} of the SQL)") from None
    return f"map({', '.join(written)})"


def _entries(tokens: Tokens, span: Range, where: str) -> list[tuple[Range, Range]]:
    first, last = span
    while tokens.upper(first) == tokens.upper(first + 1) == "{" and tokens.closing.get(first + 1) == last - 2:
        first, last = first + 1, last - 1  # braces doubled for Python's formatter
    if tokens.upper(first) == "{" and tokens.closing.get(first) == last - 1:
        return [_colon(tokens, entry, where) for entry in tokens.arguments(first)]
    if tokens.upper(first) == "MAP" and tokens.closing.get(first + 1) == last - 1:
        arguments = tokens.arguments(first + 1)
        if len(arguments) % 2 == 0:
            return list(zip(arguments[::2], arguments[1::2], strict=True))
    raise SqlError(
        f"the options of an AI call are {tokens.source(span)} ({where} of the SQL), which is not supported; "
        f"accepted: {ACCEPTED}"
    )


def _colon(tokens: Tokens, entry: Range, where: str) -> tuple[Range, Range]:
    first, last = entry
    if last - first < 3 or tokens[first + 1].text != ":":
        shown = tokens.source(entry) if last > first else ""
        raise SqlError(f"option {shown!r} has no value ({where} of the SQL); accepted: {ACCEPTED}")
    return (first, first + 1), (first + 2, last)


def _name(tokens: Tokens, span: Range, where: str) -> str:
    first, last = span
    if last - first == 1:
        token = tokens[first]
        if token.is_string:
            return tokens.sql[slice(*token.body)]
        if token.text.isidentifier():
            return token.text
    raise SqlError(f"an option's name is {tokens.source(span)!r} ({where} of the SQL); accepted: {ACCEPTED}")


def _value(tokens: Tokens, span: Range) -> tuple[str | None, str]:
    """The literal's value (None when it isn't one) and the SQL of the string."""
    source = tokens.source(span)
    if _NUMBER.fullmatch(source):
        return source, f"'{source}'"
    if span[1] - span[0] == 1 and tokens[span[0]].is_string:
        return tokens.sql[slice(*tokens[span[0]].body)], source
    return None, source if _CAST.fullmatch(source) else f"CAST({source} AS STRING)"
