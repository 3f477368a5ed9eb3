"""The SQL front end: AI calls of a SQL text → ai_if(prompt(…)), every other byte as it was. Driver-side.

Works on tokens, so strings, comments and quoted names are never touched, and the text is never parsed or printed anew.
"""

import re
import warnings
from collections.abc import Callable, Collection
from functools import partial

from quail_spark.optimizer.errors import SqlError

from .anchors import anchor_text
from .sql_calls import Call, call_at
from .sql_options import MAX_ERROR_RATIO, options_sql
from .sql_prompt import is_literal, parts_sql, prompt_parts
from .sql_template import ColumnName, Edit, apply_edits, column_sql, read_literal, split_name
from .sql_tokens import SPARK_LITERALS, Literals, Range, Tokens, tokenize

ANY_ERRORS = f"'{MAX_ERROR_RATIO}', '1'"  # with details a row that can't be answered is never an error of the query

MENTION = re.compile(r"\bai(?:_|\s*(?:\.|/\*|--))", re.IGNORECASE)


def rewrite(
    sql: str,
    inline_prompt: bool = False,
    formatted: Collection[str] | None = None,
    literals: Callable[[], Literals] = lambda: SPARK_LITERALS,
) -> str:
    """Replace the AI calls of a SQL text. Without one, and where the text can't be tokenised, `sql` itself is returned.

    `inline_prompt` writes prompt(…) as the expression it stands for, for sessions in which the name is not registered.
    `formatted` names the arguments of Python's formatter where it runs over the result (`spark.sql(text, name=…)`).
    `literals` tells how the session reads text in quotes; it is asked only where there is something to rewrite.
    Warns of arguments that have no meaning here. Raises SqlError for a form that is not accepted, PromptError for a
    placeholder, ConfigError for an option; each says the line and column.
    """
    if not MENTION.search(sql):
        return sql
    tokens = tokenize(sql, literals())
    if tokens is None:
        return sql
    edits: list[Edit] = []
    ignored: list[str] = []
    done = 0
    for index in range(len(tokens)):
        if index >= done and (call := call_at(tokens, index)):
            edits += _call_edits(call, inline_prompt, formatted, literals)
            ignored += call.ignored
            done = call.written_until
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        warnings.warn(f"ignored in AI calls, which a local model answers: {names}", stacklevel=2)
    return apply_edits(sql, edits)


def _call_edits(call: Call, inline_prompt: bool, formatted: Collection[str] | None, literals) -> list[Edit]:
    tokens, opening = call.tokens, call.opening
    readable = call.read_arguments()
    word = _prompt_word(tokens, call.prompt) if readable else None
    parts = prompt_parts(tokens, call.prompt) if readable and word is None else None
    if word is None and parts is None:
        source = tokens.sql[tokens[call.first].start : tokens[call.closing].end]
        raise SqlError(
            f"{source if len(source) < 100 else source[:100] + '…'} ({tokens.position(tokens[call.first].start)} of the "
            f"SQL) is a form that is not supported; accepted: {call.function.accepted}"
        )
    edits = _name_edits(call)
    begin = tokens[tokens.arguments(opening)[0][0]].start
    if word is not None:
        edits.append((begin, tokens[word].end, "named_struct" if inline_prompt else "prompt"))
        prompt_edits, columns = _prompt_edits(tokens, word + 1, inline_prompt, formatted)
        edits += prompt_edits
    else:
        again = partial(rewrite, inline_prompt=inline_prompt, formatted=formatted, literals=literals)
        text = parts_sql(tokens, parts, inline_prompt, formatted, again)
        edits.append((begin, tokens[call.prompt[1] - 1].end, text))
        columns = [tokens.path(part) for part in parts if not is_literal(tokens, part)]
        call.written_until = call.prompt[1]
    return edits + _option_edits(call, columns)


def _name_edits(call: Call) -> list[Edit]:
    """What stands before the bracket, and behind the call: the fields of its details under the names that they have there."""
    tokens, fields = call.tokens, call.function.fields
    start, bracket, end = tokens[call.first].start, tokens[call.opening - 1].end, tokens[call.closing].end
    if not call.detailed:
        return [(start, bracket, "ai_if")]
    if call.takes_answer:
        return [(start, bracket, "ai_if"), (end, tokens[call.closing + 2].end, "")]
    if fields == ("value", "error"):
        return [(start, bracket, "ai_if_details")]
    renamed = f" AS STRUCT<{fields[0]}: BOOLEAN, {fields[1]}: STRING>)"
    return [(start, bracket, "CAST(ai_if_details"), (end, end, renamed)]


def _option_edits(call: Call, columns: list[ColumnName | None]) -> list[Edit]:
    """What stands behind the prompt becomes one map of options, or nothing."""
    tokens, arguments = call.tokens, call.tokens.arguments(call.opening)
    text = options_sql(tokens, call.options, call.named, partial(_anchor_numbers, columns))
    if call.takes_answer and MAX_ERROR_RATIO not in text:
        text = f"{text[:-1]}, {ANY_ERRORS})" if text else f"map({ANY_ERRORS})"
    elif len(arguments) == 1:
        return []
    if call.options == arguments[-1] and len(arguments) == 2:
        return [(tokens[call.options[0]].start, tokens[call.options[1] - 1].end, text)]
    return [(tokens[call.prompt[1] - 1].end, tokens[call.closing].start, f", {text}" if text else "")]


def _anchor_numbers(columns: list[ColumnName | None], anchor: str) -> str | None:
    """The numbers of the arguments that are columns of the table `anchor`, or that column; None when none is."""
    wanted = [part.lower() for part in split_name(anchor)]
    found = [n for n, name in enumerate(columns) if name and [p.lower() for p in name[: len(wanted)]] == wanted]
    return anchor_text(found) if wanted and found else None


def _prompt_word(tokens: Tokens, span: Range) -> int | None:
    """The index of the word PROMPT when the whole argument is PROMPT(…)."""
    first, last = span
    is_call = tokens.upper(first) == "PROMPT" and tokens.closing.get(first + 1) == last - 1
    return first if is_call and tokens[first + 1].text == "(" else None


def _prompt_edits(
    tokens: Tokens, opening: int, inline_prompt: bool, formatted: Collection[str] | None
) -> tuple[list[Edit], list[ColumnName | None]]:
    """The edits inside PROMPT(…), and for each argument the column that it is; None for other expressions."""
    arguments = tokens.arguments(opening)
    if not arguments or any(first == last for first, last in arguments):
        raise SqlError(
            f"PROMPT at {tokens.position(tokens[opening - 1].start)} of the SQL has an empty argument; "
            "accepted: PROMPT('… {0} …', column, …)"
        )
    template = read_literal(tokens, arguments[0], len(arguments) - 1, formatted)
    named = template.columns if template else []
    columns = [_formatted_name(column_sql(parts), formatted) for parts in named]
    close = tokens[tokens.closing[opening]].start
    edits = list(template.edits) if template else []
    if inline_prompt:
        edits += _inline_edits(tokens, opening, arguments, columns, close)
    elif columns:
        edits.append((close, close, "".join(f", {column}" for column in columns)))
    return edits, list(named) or [tokens.path(argument) for argument in arguments[1:]]


def _formatted_name(column: str, formatted: Collection[str] | None) -> str:
    return column if formatted is None else column.replace("{", "{{").replace("}", "}}")


def _inline_edits(tokens: Tokens, opening: int, arguments: list[Range], columns: list[str], close: int) -> list[Edit]:
    """PROMPT(t, a, …) → named_struct('template', t, 'args', array(CAST(a AS STRING), …))."""
    edits: list[Edit] = [(tokens[opening].end, tokens[opening].end, "'template', ")]
    for number, (_, last) in enumerate(arguments[:-1]):
        comma = tokens[last]
        edits.append((comma.start, comma.end, " AS STRING), CAST(" if number else ", 'args', array(CAST("))
    if len(arguments) > 1:
        edits.append((close, close, " AS STRING))"))
    elif columns:
        edits.append((close, close, f", 'args', array({', '.join(f'CAST({c} AS STRING)' for c in columns)})"))
    else:
        edits.append((close, close, ", 'args', CAST(array() AS ARRAY<STRING>)"))
    return edits
