"""The SQL front end: AI calls of a SQL text → ai_if(prompt(…)), every other byte as it was. Driver-side.

Works on tokens, so strings, comments and quoted names are never touched, and the text is never parsed or printed anew.
"""

import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial

from quail_spark.optimizer.errors import SqlError

from .anchors import anchor_text
from .sql_options import IGNORED, MAX_ERROR_RATIO, SILENT, options_sql
from .sql_prompt import is_literal, parts_sql, prompt_parts
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
DETAILED = (("AI_FILTER",), ("SNOWFLAKE", "CORTEX", "AI_FILTER"))  # with TRUE behind the prompt: struct(value, error)
ACCEPTED = (
    "AI.IF(PROMPT('… {0} …', column, …)), AI.IF(PROMPT('… {table.column} …')), AI.IF(('…', column, …)), AI.IF('…' || column), "
    "each with options such as {'selectivity': 0.1} behind the prompt if wanted; AI_IF and AI_FILTER are the same"
)
_MENTION = re.compile(r"\bai(?:_|\s*(?:\.|/\*|--))", re.IGNORECASE)
_NAMES_A_THING = {"FUNCTION", "TABLE", "VIEW", "INTO", "EXISTS", "WITH", "AS", "RECURSIVE", "DESC", "DESCRIBE"}


def rewrite(sql: str, inline_prompt: bool = False, formatted: Collection[str] | None = None) -> str:
    """Replace the AI calls of a SQL text. Without one, and where the text can't be tokenised, `sql` itself is returned.

    `inline_prompt` writes prompt(…) as the expression it stands for, for sessions in which the name is not registered.
    `formatted` names the arguments of Python's formatter where it runs over the result (`spark.sql(text, name=…)`).
    Warns of arguments that have no meaning here. Raises SqlError for a form that is not accepted, PromptError for a
    placeholder, ConfigError for an option; each says the line and column.
    """
    if not _MENTION.search(sql):
        return sql
    tokens = tokenize(sql)
    if tokens is None:
        return sql
    edits: list[Edit] = []
    ignored: list[str] = []
    done = 0
    for index in range(len(tokens)):
        if index >= done and (name := _call_at(tokens, index)):
            call = _Call(tokens, name, index, index + 2 * len(name) - 1)
            edits += _call_edits(call, inline_prompt, formatted)
            ignored += call.ignored
            done = call.written_until
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        warnings.warn(f"ignored in AI calls, which a local model answers: {names}", stacklevel=2)
    return apply_edits(sql, edits)


@dataclass
class _Call:
    """An AI call; `first` is its first token, `opening` its bracket. Tokens before `written_until` need no more edits."""

    tokens: Tokens
    name: tuple[str, ...]
    first: int
    opening: int
    prompt: Range | None = None
    options: Range | None = None
    named: list[tuple[str, Range]] = field(default_factory=list)
    detailed: bool = False
    ignored: list[str] = field(default_factory=list)
    written_until: int = 0

    def read_arguments(self) -> bool:
        """Sort the arguments. False when there is one too many, or one of an unknown kind."""
        for number, (first, last) in enumerate(self.tokens.arguments(self.opening)):
            name = self.tokens.upper(first) if self.tokens.upper(first + 1) == "=>" else ""
            if first == last:
                return False
            if (number == 0 and not name) or name == "PROMPT":
                self.prompt, known = (first + 2 if name else first, last), self.prompt is None
            elif name == MAX_ERROR_RATIO.upper():
                self.named.append((MAX_ERROR_RATIO, (first + 2, last)))
                known = True
            elif name in IGNORED + SILENT:
                self.ignored += [name.lower()] if name in IGNORED else []
                known = True
            elif not name and last == first + 1 and self.tokens.upper(first) in ("TRUE", "FALSE"):
                self.detailed, known = self.tokens.upper(first) == "TRUE", self.name in DETAILED
            else:
                self.options, known = (first, last), not name and self.options is None
            if not known:
                return False
        return self.prompt is not None and self.prompt[0] < self.prompt[1]


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


def _call_edits(call: _Call, inline_prompt: bool, formatted: Collection[str] | None) -> list[Edit]:
    tokens, opening = call.tokens, call.opening
    readable = call.read_arguments()
    word = _prompt_word(tokens, call.prompt) if readable else None
    parts = prompt_parts(tokens, call.prompt) if readable and word is None else None
    if word is None and parts is None:
        source = tokens.sql[tokens[call.first].start : tokens[tokens.closing[opening]].end]
        raise SqlError(
            f"{source if len(source) < 100 else source[:100] + '…'} ({tokens.position(tokens[call.first].start)} of the "
            f"SQL) is a form that is not supported; accepted: {ACCEPTED}"
        )
    edits = [(tokens[call.first].start, tokens[opening - 1].end, "ai_if_details" if call.detailed else "ai_if")]
    begin = tokens[tokens.arguments(opening)[0][0]].start
    if word is not None:
        edits.append((begin, tokens[word].end, "named_struct" if inline_prompt else "prompt"))
        prompt_edits, columns = _prompt_edits(tokens, word + 1, inline_prompt, formatted)
        edits += prompt_edits
    else:
        again = partial(rewrite, inline_prompt=inline_prompt, formatted=formatted)
        text = parts_sql(tokens, parts, inline_prompt, formatted, again)
        edits.append((begin, tokens[call.prompt[1] - 1].end, text))
        columns = [tokens.path(part) for part in parts if not is_literal(tokens, part)]
        call.written_until = call.prompt[1]
    return edits + _option_edits(call, columns)


def _option_edits(call: _Call, columns: list[ColumnName | None]) -> list[Edit]:
    """What stands behind the prompt becomes one map of options, or nothing."""
    tokens, arguments = call.tokens, call.tokens.arguments(call.opening)
    if len(arguments) == 1:
        return []
    text = options_sql(tokens, call.options, call.named, partial(_anchor_numbers, columns))
    if call.options == arguments[-1] and len(arguments) == 2:
        return [(tokens[call.options[0]].start, tokens[call.options[1] - 1].end, text)]
    return [(tokens[call.prompt[1] - 1].end, tokens[tokens.closing[call.opening]].start, f", {text}" if text else "")]


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
