"""The carrier of an AI call: `ai_if` as a pandas UDF, right wherever Spark puts it. Executor-side, torch-free.

The planner replaces it by operators that share KV between predicates where it can.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from quail_spark.engine.evaluator import Answers, Texts
from quail_spark.optimizer.errors import PromptError, RowError
from quail_spark.optimizer.options import parse_options
from quail_spark.optimizer.plan import FALSE, LAYOUTS, TRUE, Argument, OperatorSpec, Predicate

from .anchors import anchor_placeholders
from .failed_rows import FailedRows
from .packing import cut

_ANSWER = {TRUE: True, FALSE: False}  # NULL and FAILED: None


def ai_if(calls: Iterator[tuple[pd.DataFrame, ...]]) -> Iterator[pd.Series]:
    """TRUE, FALSE or NULL per row. Children: the struct that prompt() builds, and a map of options if wanted.

    NULL where the template or an argument that it uses is NULL. Rows that can't be answered: see failed_rows.py.
    """
    yield from map(_series, _Task().answers(map(_read, _valid(calls))))


def ai_if_details(calls: Iterator[tuple[pd.DataFrame, ...]]) -> Iterator[pd.DataFrame]:
    """The same as a struct of `value` and `error`: why a row can't be answered, which then is no error of the query."""
    for answers in _DetailedTask().answers(map(_read, _valid(calls))):
        yield pd.DataFrame(answers, columns=["value", "error"], dtype=object)


class _Question(NamedTuple):
    """What rows must have in common to share a stream."""

    template: str
    arguments: int
    options: tuple[tuple[str, str], ...]


@dataclass
class _Batch:
    """Rows of one Arrow batch; `questions[i]` is None where the template is NULL."""

    questions: list[_Question | None]
    rows: Texts

    @cached_property
    def question(self) -> _Question | None:
        """That of all rows, if they have one in common."""
        distinct = set(self.questions)
        return self.questions[0] if len(distinct) == 1 else None


def _valid(calls: Iterator) -> Iterator:
    """The batches, which pandas can't take with bytes that are no UTF-8 in a text."""
    try:
        yield from calls
    except (UnicodeDecodeError, pa.ArrowException) as error:
        if not isinstance(error, UnicodeDecodeError) and "Wrapping" not in str(error):
            raise
        raise RowError(
            f"a text that an AI call reads is not valid UTF-8 ({error}); accepted where the call runs as a UDF: "
            "make_valid_utf8(column)"
        ) from error


def _read(columns: pd.DataFrame | tuple) -> _Batch:
    prompts, *rest = columns if isinstance(columns, tuple) else (columns,)
    if not isinstance(prompts, pd.DataFrame) or list(prompts.columns) != ["template", "args"]:
        raise PromptError("the first argument of ai_if is not a prompt; accepted: prompt('… {0} …', column, …)")
    if len(rest) > 1:
        raise PromptError(f"ai_if got {1 + len(rest)} arguments; accepted: a prompt, and a map of options if wanted")
    rows = [[] if args is None else list(args) for args in prompts["args"].tolist()]
    templates = prompts["template"].tolist()
    options = [_options(given) for given in rest[0].tolist()] if rest else [()] * len(rows)
    questions = [
        _Question(template, len(row), given) if isinstance(template, str) else None
        for template, row, given in zip(templates, rows, options, strict=True)
    ]
    return _Batch(questions, rows)


def _options(given) -> tuple[tuple[str, str], ...]:
    """A map as it comes from Arrow: None, a dict, or a list of pairs."""
    return tuple(sorted(dict(given).items())) if isinstance(given, dict | list) else ()


class _Task:
    """The questions of one task, and its engine from the first of them on."""

    _null = None  # the value where the template is NULL

    def __init__(self):
        self._failed: dict[_Question, FailedRows] = {}

    @cached_property
    def _engine(self):
        from .engines import task_engine

        return task_engine()

    @cached_property
    def _conf(self):
        from .engines import task_settings

        return task_settings()[0]

    def answers(self, batches: Iterable[_Batch]) -> Iterator[list]:
        """The values of each batch."""
        for question, run in groupby(batches, key=lambda batch: batch.question):
            if question is not None:
                yield from self._stream(question, run)
            else:
                yield from map(self._mixed, run)
        self._finish()

    def _stream(self, question: _Question, batches: Iterable[_Batch]) -> Iterator[list]:
        """Answer batches of one question. A few are on their way to the engine at any time."""
        spec = self._spec(question)
        waiting: deque[_Batch] = deque()
        values: list = []
        for answers in self._engine.rows(spec, self._messages(batches, waiting)):
            self._check(question, spec, answers, waiting[0].rows, len(values))
            values += self._values(answers)
            if len(values) == len(waiting[0].rows):
                yield values
                waiting.popleft()
                values = []

    def _mixed(self, batch: _Batch) -> list:
        """Answer a batch in which templates or options differ from row to row."""
        places: dict[_Question, list[int]] = {}
        for place, question in enumerate(batch.questions):
            if question is not None:
                places.setdefault(question, []).append(place)
        values: list = [self._null] * len(batch.rows)
        for question, own in places.items():
            part = _Batch([question] * len(own), [batch.rows[place] for place in own])
            for found in self._stream(question, [part]):
                for place, value in zip(own, found, strict=True):
                    values[place] = value
        return values

    def _values(self, answers: Answers) -> Iterable:
        return map(_ANSWER.get, answers.codes[:, 0].tolist())

    def _finish(self) -> None:
        for failed in self._failed.values():
            failed.finish()

    def _messages(self, batches: Iterable[_Batch], waiting: deque[_Batch]) -> Iterator[Texts]:
        for batch in batches:
            waiting.append(batch)
            yield from chunks(batch.rows, self._conf["batch.rows"], self._conf["batch.bytes"])

    def _spec(self, question: _Question) -> OperatorSpec:
        options = parse_options(dict(question.options))
        arguments = tuple(map(Argument, range(question.arguments)))
        anchor = anchor_placeholders(options.anchor, question.arguments)
        predicate = Predicate(question.template, arguments, anchor, options.selectivity, options.max_error_ratio)
        layout = options.layout or self._conf["prompt.layout"]  # the planner has settled `auto` where it could
        layout = LAYOUTS[0] if layout == "auto" else layout
        return OperatorSpec(f"ai_if: {question.template}", "answers", (predicate,), layout)

    def _check(self, question: _Question, spec: OperatorSpec, answers: Answers, rows: Texts, start: int) -> None:
        failed = self._failed.setdefault(question, FailedRows(self._conf["onError"], spec))
        used = spec.predicates[0].used
        failed.check(answers, lambda item, _: rows[start + item][used[0]] if used else "")


class _DetailedTask(_Task):
    """Values are (answer, why there is none)."""

    _null = (None, None)

    def _values(self, answers: Answers) -> Iterable:
        errors = {item: message for item, _, message in answers.errors}
        return [(_ANSWER.get(code), errors.get(item)) for item, code in enumerate(answers.codes[:, 0].tolist())]

    def _check(self, *_) -> None:
        """A failure is a value."""


def _series(values: list[bool | None]) -> pd.Series:
    return pd.Series(values, dtype=object)


def chunks(rows: Texts, most_rows: int, most_bytes: int) -> Iterator[Texts]:
    """Consecutive rows, at most `most_rows` and `most_bytes` of UTF-8 together; a single row may exceed the bytes."""
    sizes = [sum(len(text.encode("utf-8", "surrogatepass")) for text in row if text is not None) for row in rows]
    for start, end in cut(sizes, most_rows, most_bytes):
        yield rows[start:end]
