"""Placeholders of a template as it stands in SQL: columns named in it become numbered arguments. Driver-side."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from quail_spark.optimizer.errors import PromptError
from quail_spark.optimizer.template import check_arguments

from .sql_tokens import Range, Tokens, is_plain_name, unquote

_PART = r"(?:`(?:[^`]|``)+`|\w+)"
_CONTENT = r"((?:`(?:[^`]|``)*`|[^`{}])*)"
_BRACE = re.compile(rf"\{{\{{|\}}\}}|\{{{_CONTENT}\}}|[{{}}]")
_DOUBLED_BRACE = re.compile(
    rf"\{{{{4}}|\}}{{4}}|\{{\{{{_CONTENT}\}}\}}|\{{{_CONTENT}\}}|[{{}}]"
)  # before Python's formatter
_NAME = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
_LETTER_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[A-Za-z0-9]")  # \n, \u0041, …: no name has one
ACCEPTED = "{0}, {1}, … for the arguments behind the template, or columns as {name} or {table.name}; {{ for a brace"


ColumnName = tuple[str, ...]  # its parts, without backticks
Edit = tuple[int, int, str]  # text[start:end] becomes the third


@dataclass
class Template:
    """A template within `text`: SQL, or the template alone. `edits` apply to `text`; `columns` are those named, in order.

    `formatted` are the names that Python's formatter will replace in the SQL (then `{0}` must become `{{0}}`); None
    when it won't run.
    """

    text: str
    shown: str  # as the user wrote it, for messages
    where: Callable[[int], str] = lambda offset: ""  # " at line …" for an offset of `text`
    formatted: Collection[str] | None = None
    edits: list[Edit] = field(default_factory=list)
    columns: list[ColumnName] = field(default_factory=list)
    checked: str = ""  # the template after the edits, as Spark's parser and Python's formatter leave its braces
    numbered: bool = False

    def at(self, offset: int) -> str:
        """Where in which template."""
        return f"in the template {self.shown}{self.where(offset)}"


def read_literal(tokens: Tokens, span: Range, given: int, formatted: Collection[str] | None) -> Template | None:
    """The template in `span`, behind which `given` arguments stand; None when it is not a literal.

    Raises PromptError for a placeholder that is wrong or has no argument.
    """
    literals = tokens.list[slice(*span)]
    if not literals or not all(token.is_string for token in literals):
        return None
    template = Template(
        tokens.sql, tokens.source(span), lambda offset: f" at {tokens.position(offset)} of the SQL", formatted
    )
    for literal in literals:
        _read(template, *literal.body, quote=None if literal.is_raw else literal.text[0])
    _check(template, literals[0].start, given)
    return template


def number_columns(text: str, given: int) -> tuple[str, list[ColumnName]]:
    """The template with numbers for the columns named in it, and those columns. Raises PromptError as `read_literal`."""
    template = Template(text, repr(text))
    _read(template, 0, len(text), quote=None)
    _check(template, 0, given)
    return apply_edits(text, template.edits), template.columns


def apply_edits(text: str, edits: list[Edit]) -> str:
    """Replace the spans, which do not overlap. Without any, `text` itself is returned."""
    if not edits:
        return text
    pieces, end = [], 0
    for start, stop, replacement in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [text[end:start], replacement]
        end = stop
    return "".join(pieces) + text[end:]


def _check(template: Template, start: int, given: int) -> None:
    if template.columns and template.numbered:
        raise PromptError(
            f"numbers and column names are mixed {template.at(start)}; accepted: one kind in one template"
        )
    if template.columns and given:
        raise PromptError(
            f"{given} argument{'s stand' if given > 1 else ' stands'} behind columns named {template.at(start)}; "
            "accepted: all columns in the template, or all behind it"
        )
    try:
        check_arguments(template.checked, len(template.columns) or given)
    except PromptError as error:
        raise PromptError(f"{error}{template.where(start)}") from None


def _read(template: Template, start: int, end: int, quote: str | None) -> None:
    """Read text[start:end]. `quote` is that of a literal in which Spark reads escapes."""
    brace = _BRACE if template.formatted is None else _DOUBLED_BRACE
    for match in brace.finditer(template.text, start, end):
        template.checked += template.text[start : match.start()]
        start = match.end()
        template.checked += _read_brace(template, match, quote)
    template.checked += template.text[start:end]


def _read_brace(template: Template, match: re.Match, quote: str | None) -> str:
    """Record the edit for one brace or placeholder and return what the template holds there in the end."""
    source, content = match.group(), match[match.lastindex] if match.lastindex else None
    if content is None and len(source) > 1:
        return source[:2]
    if content is None:
        raise PromptError(f"lone {source!r} {template.at(match.start())}; write {source * 2!r} for a brace")
    if _is_not_ours(template, match, content):
        return ""
    if re.fullmatch(r"\s*[0-9]+\s*", content):
        template.numbered = True
        number = f"{{{content}}}"
    else:
        number = f"{{{_column(template, content, match.start(), quote)}}}"
    written = number if template.formatted is None else f"{{{number}}}"
    if written != source:
        template.edits.append((match.start(), match.end(), written))
    return number


def _is_not_ours(template: Template, match: re.Match, content: str) -> bool:
    """Whether Spark replaces it (${env:HOME}), or Python's formatter."""
    if ":" in content and template.text[: match.start()].endswith("$"):
        return True
    names = template.formatted or ()
    return not match.group().startswith("{{") and re.split(r"[.\[!:]", content)[0] in names


def _column(template: Template, content: str, offset: int, quote: str | None) -> int:
    """The argument's number for a column named in the template."""
    name = content.strip()
    if quote is not None:
        name = re.sub(r"\\([^A-Za-z0-9])", r"\1", name).replace(quote * 2, quote)
    if not _NAME.fullmatch(name) or (quote is not None and _LETTER_ESCAPE.search(content)):
        raise PromptError(
            f"placeholder {{{content}}} {template.at(offset)} is neither a number nor a column's name; "
            f"accepted: {ACCEPTED}"
        )
    parts = split_name(name)
    if parts not in template.columns:
        template.columns.append(parts)
    return template.columns.index(parts)


def split_name(name: str) -> ColumnName:
    """The parts of a.`b c`.d."""
    return tuple(unquote(part) for part in re.findall(_PART, name))


def column_sql(parts: ColumnName) -> str:
    """A column's name as SQL, in backticks where it must be."""
    return ".".join(part if is_plain_name(part) else "`" + part.replace("`", "``") + "`" for part in parts)
