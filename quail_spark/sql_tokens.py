"""SQL text as tokens that know their place in it: sqlglot's Spark tokenizer, and what the front end asks of it. Driver-side."""

from dataclasses import dataclass
from functools import cached_property

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

_BRACKETS = {"(": ")", "[": "]", "{": "}"}

Range = tuple[int, int]  # tokens first … last - 1


class _Tokenizer(Spark.Tokenizer):
    """Spark's, but statements such as EXPLAIN are tokenised to their end, and $$ … $$ is a string as in Spark."""

    COMMANDS: set[TokenType] = set()  # noqa: RUF012
    HEREDOC_STRINGS = ["$"]  # noqa: RUF012
    HEREDOC_TAG_IS_IDENTIFIER = True
    HEREDOC_STRING_ALTERNATIVE = TokenType.PARAMETER


@dataclass(frozen=True)
class Literals:
    """How a session reads text in quotes. `double_quotes`: "…" is a string, not a name; `escapes`: a backslash is an escape."""

    double_quotes: bool = True
    escapes: bool = True


SPARK_LITERALS = Literals()


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is the source itself, `sql[start:end]`. `is_string`: a literal in quotes; `is_raw`: one, such as r'…', in which a
    backslash is just that."""

    start: int
    end: int
    text: str
    is_string: bool
    is_raw: bool

    @staticmethod
    def of(sql: str, start: int, end: int, literals: Literals) -> "Token":
        """The token `sql[start:end]`."""
        text = sql[start:end]
        raw = text[:2].lower() in ("r'", 'r"')
        string = text[0] == "'" or (text[0] == '"' and literals.double_quotes) or raw
        return Token(start, end, text, string, raw or (string and not literals.escapes))

    @property
    def body(self) -> Range:
        """Offsets in the SQL of what stands between the quotes of a string."""
        return self.start + 1 + (self.text[0] not in "'\""), self.end - 1


class Tokens:
    """The tokens of one SQL text, without comments."""

    def __init__(self, sql: str, literals: Literals):
        """Raises sqlglot's TokenError where the text can't be split."""
        self.sql = sql
        raw = _Tokenizer().tokenize(sql.replace("\\\n", "  "))  # which continues a `--` comment
        self.list = _merge(sql, raw, literals)

    def __len__(self) -> int:
        return len(self.list)

    def __getitem__(self, index: int) -> Token:
        return self.list[index]

    def upper(self, index: int) -> str:
        """The token's source in upper case; "" beyond either end."""
        return self.list[index].text.upper() if 0 <= index < len(self.list) else ""

    def source(self, span: Range) -> str:
        """The SQL from the first to the last token of a range."""
        return self.sql[self.list[span[0]].start : self.list[span[1] - 1].end]

    def position(self, offset: int) -> str:
        """`line 2, column 7`, both from 1."""
        before = self.sql[:offset]
        return f"line {before.count(chr(10)) + 1}, column {offset - before.rfind(chr(10))}"

    @cached_property
    def closing(self) -> dict[int, int]:
        """Index of an opening bracket → index of its closing one. Brackets without a partner are absent."""
        pairs, waiting = {}, []
        for index, token in enumerate(self.list):
            if token.text in _BRACKETS:
                waiting.append(index)
            elif token.text in _BRACKETS.values():
                while waiting and _BRACKETS[self.list[waiting[-1]].text] != token.text:
                    waiting.pop()
                if waiting:
                    pairs[waiting.pop()] = index
        return pairs

    def arguments(self, opening: int) -> list[Range]:
        """What stands between commas inside the bracket at `opening`; [] when nothing does."""
        close = self.closing[opening]
        ranges, first, index = [], opening + 1, opening + 1
        while index < close:
            if self.list[index].text == ",":
                ranges.append((first, index))
                first = index + 1
            index = self.closing.get(index, index) + 1
        return [*ranges, (first, close)] if close > opening + 1 else []

    def path(self, span: Range) -> tuple[str, ...] | None:
        """The parts of a column name such as a.`b c`.d, without backticks; None when the range is something else."""
        words = self.list[slice(*span)]
        if len(words) % 2 == 0 or any(word.text != "." for word in words[1::2]) or any(w.is_string for w in words):
            return None
        parts = [word.text for word in words[::2]]
        return tuple(map(unquote, parts)) if all(p[0] in '`"_' or p[0].isalpha() for p in parts) else None


def tokenize(sql: str, literals: Literals = SPARK_LITERALS) -> Tokens | None:
    """The tokens, or None where sqlglot can't tell them."""
    try:
        return Tokens(sql, literals)
    except TokenError:
        return None


def unquote(part: str) -> str:
    """One part of a column name without its backticks (or double quotes, where those make a name)."""
    quote = part[:1]
    return part[1:-1].replace(quote * 2, quote) if quote in ("`", '"') else part


def is_plain_name(part: str) -> bool:
    """Whether Spark reads this as a column name without backticks: an ASCII word that is no keyword."""
    if not (part.isascii() and part.isidentifier()):
        return False
    return [token.token_type for token in _Tokenizer().tokenize(part)] == [TokenType.VAR]


def _merge(sql: str, found: list, literals: Literals) -> list[Token]:
    """sqlglot's tokens, with those together that share source: the parts of 1L, and 'it''s', which it takes for two strings."""
    tokens: list[Token] = []
    for raw in found:
        token = Token.of(sql, raw.start, raw.end + 1, literals)
        last = tokens[-1] if tokens else None
        if last is not None and token.start < last.end:
            continue
        if last is not None and token.start == last.end and _doubled_quote(last, token):
            tokens[-1] = Token.of(sql, last.start, token.end, literals)
        else:
            tokens.append(token)
    return tokens


def _doubled_quote(last: Token, token: Token) -> bool:
    return last.text[0] in "'\"" and last.text[0] == token.text[0]
