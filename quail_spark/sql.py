"""The SQL front end: AI calls of a SQL text → ai_if(prompt(…)), every other byte as it was. Driver-side.

Works on tokens, so strings, comments and quoted names are never touched, and the text is never parsed or printed anew.
"""

import re
from collections.abc import Collection
from functools import partial

from quail_spark.optimizer.errors import SqlError

from .anchors import anchor_text
from .sql_options import options_sql
from .sql_template import ColumnName, Edit, apply_edits, column_sql, read_literal, split_name
from .sql_tokens import Range, Tokens, tokenize

SUPPORTED = (("AI", "IF"), ("AI_IF",), ("AI_FILTER",), ("SNOWFLAKE", "CORTEX", "AI_FILTER"))
NOT_YET = (
    ("AI", "SCORE"),
    ("AI_SCORE",),
    ("AI", "CLASSIFY"),
    ("AI_CLASSIFY",),
    ("SNOWFLAKE", "CORTEX", "AI_CLASSIFY"),
    ("AI", "GENERATE_BOOL"),
    ("AI_QUERY",),
)
ACCEPTED = (
    "AI.IF(PROMPT('… {0} …', column, …)) or AI.IF(PROMPT('… {table.column} …')), "
    "each with options such as {'selectivity': 0.1} behind the prompt if wanted; AI_IF and AI_FILTER are the same"
)
_MENTION = re.compile(r"\bai(?:_|\s*(?:\.|/\*|--))", re.IGNORECASE)
_NAMES_A_THING = {"FUNCTION", "TABLE", "VIEW", "INTO", "EXISTS", "WITH", "AS", "RECURSIVE", "DESC", "DESCRIBE"}


def rewrite(sql: str, inline_prompt: bool = False, formatted: Collection[str] | None = None) -> str:
    """Replace the AI calls of a SQL text. Without one, and where the text can't be tokenised, `sql` itself is returned.

    `inline_prompt` writes prompt(…) as the expression it stands for, for sessions in which the name is not registered.
    `formatted` names the arguments of Python's formatter where it runs over the result (`spark.sql(text, name=…)`).
    Raises SqlError for a form that is not accepted, PromptError for a placeholder, ConfigError for an option; each says
    the line and column.
    """
    if not _MENTION.search(sql):
        return sql
    tokens = tokenize(sql)
    if tokens is None:
        return sql
    edits: list[Edit] = []
    for index in range(len(tokens)):
        if name := _call_at(tokens, index):
            edits += _call_edits(tokens, index, index + 2 * len(name) - 1, inline_prompt, formatted)
    return apply_edits(sql, edits)


def _call_at(tokens: Tokens, index: int) -> tuple[str, ...] | None:
    """The AI function whose call starts here. Raises SqlError for one that is not supported yet."""
    before = tokens.upper(index - 1)
    if before in (".", ":", "@", "$") or before in _NAMES_A_THING:
        return None
    for name in SUPPORTED + NOT_YET:
        opening = index + 2 * len(name) - 1
        words = tuple(tokens.upper(i) for i in range(index, opening))
        if words == _dotted(name) and opening in tokens.closing and tokens[opening].text == "(":
            if name in NOT_YET:
                raise SqlError(
                    f"{'.'.join(name)} is not supported yet ({tokens.position(tokens[index].start)} of the SQL); "
                    f"accepted: {ACCEPTED}"
                )
            return name
    return None


def _dotted(name: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(".".join(name).replace(".", " . ").split())


def _call_edits(
    tokens: Tokens, first: int, opening: int, inline_prompt: bool, formatted: Collection[str] | None
) -> list[Edit]:
    arguments = tokens.arguments(opening)
    prompt = _prompt_word(tokens, arguments[0]) if arguments else None
    if prompt is None or len(arguments) > 2 or any(first == last for first, last in arguments):
        call = tokens.sql[tokens[first].start : tokens[tokens.closing[opening]].end]
        raise SqlError(
            f"{call if len(call) < 100 else call[:100] + '…'} ({tokens.position(tokens[first].start)} of the SQL) "
            f"is a form that is not supported; accepted: {ACCEPTED}"
        )
    edits = [(tokens[first].start, tokens[opening - 1].end, "ai_if")]
    edits.append((tokens[arguments[0][0]].start, tokens[prompt].end, "named_struct" if inline_prompt else "prompt"))
    prompt_edits, columns = _prompt_edits(tokens, prompt + 1, inline_prompt, formatted)
    edits += prompt_edits
    if len(arguments) == 2:
        span = arguments[1]
        text = options_sql(tokens, span, partial(_anchor_numbers, columns))
        edits.append((tokens[span[0]].start, tokens[span[1] - 1].end, text))
    return edits


def _anchor_numbers(columns: list[ColumnName | None], anchor: str) -> str | None:
    """The numbers of the arguments that are columns of the table `anchor`, or that column; None when none is."""
    wanted = [part.lower() for part in split_name(anchor)]
    found = [n for n, name in enumerate(columns) if name and [p.lower() for p in name[: len(wanted)]] == wanted]
    return anchor_text(found) if wanted and found else None


def _prompt_word(tokens: Tokens, span: Range) -> int | None:
    """The index of the word PROMPT when the whole argument is PROMPT(…), also after `prompt =>`."""
    first, last = span
    if tokens.upper(first) == "PROMPT" and tokens.upper(first + 1) == "=>":
        first += 2
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
