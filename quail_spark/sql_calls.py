"""AI functions as SQL knows them: their names, and what each argument of a call means. Driver-side."""

from dataclasses import dataclass, field

from quail_spark.optimizer.errors import SqlError

from .sql_options import IGNORED, MAX_ERROR_RATIO, SILENT
from .sql_tokens import Range, Tokens

ACCEPTED = (
    "AI.IF(PROMPT('… {0} …', column, …)), AI.IF(PROMPT('… {table.column} …')), AI.IF(('…', column, …)), AI.IF('…' || column), "
    "each with options such as {'selectivity': 0.1} behind the prompt if wanted; AI_IF and AI_FILTER are the same"
)
QUERY_ACCEPTED = (
    "ai_query('endpoint', CONCAT('…', column), returnType => 'BOOLEAN'), with failOnError => false if wanted"
)
_NAMES_A_THING = {"FUNCTION", "TABLE", "VIEW", "INTO", "EXISTS", "WITH", "AS", "RECURSIVE", "DESC", "DESCRIBE"}


@dataclass(frozen=True)
class AiFunction:
    """`name` by parts. `before`: arguments without a name that stand before the prompt and are ignored.

    `fields`: what the values of a call with details are called, answer and error; "" where a call has none. `always`: every
    call has details. `switch`: `TRUE` behind the prompt asks for them. `typed`: the type must be said to be BOOLEAN.
    """

    name: tuple[str, ...]
    before: tuple[str, ...] = ()
    fields: tuple[str, str] | None = None
    always: bool = False
    switch: bool = False
    typed: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The tokens of its name, in upper case."""
        return tuple(".".join(self.name).replace(".", " . ").split())

    @property
    def accepted(self) -> str:
        """Forms of a call, for messages."""
        return QUERY_ACCEPTED if self.typed else ACCEPTED


FUNCTIONS = (
    AiFunction(("AI", "IF")),
    AiFunction(("AI_IF",)),
    AiFunction(("AI_FILTER",), fields=("value", "error"), switch=True),
    AiFunction(("SNOWFLAKE", "CORTEX", "AI_FILTER"), fields=("value", "error"), switch=True),
    AiFunction(("AI", "GENERATE_BOOL"), fields=("result", "status"), always=True),
    AiFunction(("AI_QUERY",), before=("endpoint",), fields=("result", "errorMessage"), typed=True),
)
NOT_YET = (
    AiFunction(("AI", "SCORE")),
    AiFunction(("AI_SCORE",)),
    AiFunction(("AI", "CLASSIFY")),
    AiFunction(("AI_CLASSIFY",)),
    AiFunction(("SNOWFLAKE", "CORTEX", "AI_CLASSIFY")),
)


@dataclass
class Call:
    """An AI call; `first` is its first token, `opening` its bracket. Tokens before `written_until` need no more edits."""

    tokens: Tokens
    function: AiFunction
    first: int
    prompt: Range | None = None
    options: Range | None = None
    named: list[tuple[str, Range]] = field(default_factory=list)
    detailed: bool = False
    ignored: list[str] = field(default_factory=list)
    written_until: int = 0
    _typed: bool = False

    def __post_init__(self):
        self.detailed = self.function.always

    @property
    def opening(self) -> int:
        return self.first + len(self.function.words)

    @property
    def closing(self) -> int:
        return self.tokens.closing[self.opening]

    @property
    def takes_answer(self) -> bool:
        """Whether the answer is taken out of the details at once: AI.GENERATE_BOOL(…).result."""
        after = [self.tokens.upper(self.closing + n) for n in (1, 2)]
        return self.detailed and after == [".", self.function.fields[0].upper()]

    def read_arguments(self) -> bool:
        """Sort the arguments. False when there is one too many, or one of an unknown kind."""
        unnamed = 0
        for first, last in self.tokens.arguments(self.opening):
            if first == last:
                return False
            named = self.tokens.upper(first + 1) == "=>"
            known = (
                self._take_named(self.tokens.upper(first), (first + 2, last))
                if named
                else self._take_unnamed(unnamed, (first, last))
            )
            unnamed += not named
            if not known:
                return False
        typed = self._typed or not self.function.typed
        return typed and self.prompt is not None and self.prompt[0] < self.prompt[1]

    def _take_unnamed(self, place: int, span: Range) -> bool:
        before = self.function.before
        if place < len(before):
            self.ignored.append(before[place])
            return True
        if place == len(before) and self.prompt is None:
            self.prompt = span
            return True
        word = self.tokens.upper(span[0])
        if span[1] == span[0] + 1 and word in ("TRUE", "FALSE") and self.function.switch:
            self.detailed = word == "TRUE"
            return True
        known, self.options = self.options is None, span
        return known

    def _take_named(self, name: str, span: Range) -> bool:
        if name == "PROMPT" or (name == "REQUEST" and self.function.typed):
            known, self.prompt = self.prompt is None, span
            return known
        if name == MAX_ERROR_RATIO.upper():
            self.named.append((MAX_ERROR_RATIO, span))
        elif name in IGNORED:
            self.ignored.append(name.lower())
        elif self.function.typed and name == "RETURNTYPE":
            self._typed = self.tokens.source(span).strip("'\"").upper() == "BOOLEAN"
        elif self.function.typed and name == "FAILONERROR":
            self.detailed = self.tokens.source(span).upper() == "FALSE"
            return self.tokens.source(span).upper() in ("TRUE", "FALSE")
        elif self.function.typed and name == "MODELPARAMETERS":
            self.ignored.append("modelParameters")
        else:
            return name in SILENT
        return True


def call_at(tokens: Tokens, index: int) -> Call | None:
    """The AI call that starts here. Raises SqlError for a function that is not supported yet."""
    before = tokens.upper(index - 1)
    if before in (".", ":", "@", "$") or before in _NAMES_A_THING:
        return None
    for function in FUNCTIONS + NOT_YET:
        opening = index + len(function.words)
        words = tuple(tokens.upper(i) for i in range(index, opening))
        if words != function.words or opening not in tokens.closing or tokens[opening].text != "(":
            continue
        after = tokens.closing[opening] + 1
        if tokens.upper(after) == "AS" and tokens.upper(after + 1) == "(":
            return None  # a CTE of this name: WITH q AS (…), ai_if (x) AS (…)
        if function in NOT_YET:
            raise SqlError(
                f"{'.'.join(function.name)} is not supported yet ({tokens.position(tokens[index].start)} of the SQL); "
                f"accepted: {ACCEPTED}"
            )
        return Call(tokens, function, index)
    return None
