"""Placeholders of a template as it stands in SQL: columns named in it become numbered arguments. Driver-side."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from quail_spark.optimizer.errors import PromptError
from quail_spark.optimizer.template import check_arguments

from .sql_tokens import Range, Token, Tokens, is_plain_name, unquote

_PART = r"(?:`(?:[^`]|``)+`|\w+)"
_CONTENT = r"((?:`(?:[^`]|``)*`|[^`{}])*)"
_BRACE = re.compile(rf"\{{\{{|\}}\}}|\{{{_CONTENT}\}}|[{{}}]")
_DOUBLED_BRACE = re.compile(
    rf"\{{{{4}}|\}}{{4}}|\{{\{{{_CONTENT}\}}\}}|\{{{_CONTENT}\}}|[{{}}]"
)  # before Python's formatter
_NAME = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
ACCEPTED = "{0}, {1}, … for the arguments behind the template, or columns as {name} or {table.name}; {{ for a brace"


@dataclass
class Template:
    """A template of string literals. `edits` are (start, end, text) in the SQL; `columns` the named columns, in order."""

    tokens: Tokens
    literals: list[Token]
    formatted: Collection[str] | None = None
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    columns: list[tuple[str, ...]] = field(default_factory=list)
    checked: str = ""  # the template after the edits, as Spark's parser and Python's formatter leave its braces
    numbered: bool = False

    @property
    def shown(self) -> str:
        """The template as the user wrote it, for messages."""
        return self.tokens.sql[self.literals[0].start : self.literals[-1].end]

    def at(self, offset: int) -> str:
        return f"in the template {self.shown} at {self.tokens.position(offset)} of the SQL"


def read_template(tokens: Tokens, span: Range, given: int, formatted: Collection[str] | None) -> Template | None:
    """Resolve the template in `span`, behind which `given` arguments stand; None when it is not a literal.

    `formatted` are the names that Python's formatter will replace in the SQL (then `{0}` must become `{{0}}`); None
    when it won't run. Raises PromptError for a placeholder that is wrong or has no argument.
    """
    literals = tokens.list[slice(*span)]
    if not literals or not all(token.is_string for token in literals):
        return None
    template = Template(tokens, literals, formatted)
    for literal in literals:
        _read_literal(template, literal)
    if template.columns and template.numbered:
        raise PromptError(
            f"numbers and column names are mixed {template.at(literals[0].start)}; accepted: one kind in one template"
        )
    if template.columns and given:
        raise PromptError(
            f"{given} argument{'s stand' if given > 1 else ' stands'} behind columns named "
            f"{template.at(literals[0].start)}; accepted: all columns in the template, or all behind it"
        )
    try:
        check_arguments(template.checked, len(template.columns) or given)
    except PromptError as error:
        raise PromptError(f"{error} ({tokens.position(literals[0].start)} of the SQL)") from None
    return template


def _read_literal(template: Template, literal: Token) -> None:
    sql = template.tokens.sql
    start, end = literal.body
    for match in (_BRACE if template.formatted is None else _DOUBLED_BRACE).finditer(sql, start, end):
        template.checked += sql[start : match.start()]
        start = match.end()
        template.checked += _read_brace(template, literal, match)
    template.checked += sql[start:end]


def _read_brace(template: Template, literal: Token, match: re.Match) -> str:
    """Record the edit for one brace or placeholder and return what the template holds there in the end."""
    source, content = match.group(), match[match.lastindex] if match.lastindex else None
    if content is None and len(source) > 1:
        return source[:2]
    if content is None:
        raise PromptError(f"lone {source!r} {template.at(match.start())}; write {source * 2!r} for a brace")
    if template.formatted is not None and re.split(r"[.\[!:]", content)[0] in template.formatted and source[:2] != "{{":
        return ""
    if ":" in content and template.tokens.sql[match.start() - 1] == "$":
        return ""  # ${env:HOME}: Spark's own substitution
    if re.fullmatch(r"\s*[0-9]+\s*", content):
        template.numbered = True
        number = f"{{{content}}}"
    else:
        number = f"{{{_column(template, literal, content, match.start())}}}"
    written = number if template.formatted is None else f"{{{number}}}"
    if written != source:
        template.edits.append((match.start(), match.end(), written))
    return number


def _column(template: Template, literal: Token, content: str, offset: int) -> int:
    """The argument's number for a column named in the template."""
    name = content.strip()
    if not literal.is_raw:
        name = re.sub(r"\\(.)", r"\1", name).replace(literal.text[0] * 2, literal.text[0])
    if not _NAME.fullmatch(name):
        raise PromptError(
            f"placeholder {{{content}}} {template.at(offset)} is neither a number nor a column's name; "
            f"accepted: {ACCEPTED}"
        )
    parts = tuple(unquote(part) for part in re.findall(_PART, name))
    if parts not in template.columns:
        template.columns.append(parts)
    return template.columns.index(parts)


def column_sql(parts: tuple[str, ...]) -> str:
    """A column's name as SQL, in backticks where it must be."""
    return ".".join(part if is_plain_name(part) else "`" + part.replace("`", "``") + "`" for part in parts)
