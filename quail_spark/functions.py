"""AI calls as Columns: `df.filter(ai_if(prompt("{0} asks for a refund", df.body)))`. Driver-side, classic Spark and Connect."""

from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

from quail_spark.optimizer.errors import ConfigError, PromptError
from quail_spark.optimizer.options import parse_options

from .anchors import anchor_text
from .sql_template import column_sql, number_columns

__all__ = ["ai_if", "prompt"]


def prompt(template: str | Column, *columns: Column | str) -> Column:
    """A question about columns, for `ai_if`. The SQL function of the same name.

    `template` has `{0}`, `{1}`, … for the columns behind it, or names them: `"{customers.profile} …"`. `{{` is a brace.
    Columns of other types than string are cast as Spark casts them. A string among `columns` is a column's name.
    Raises PromptError for a placeholder that is wrong or has no column. A template that is a column itself is checked
    when the query runs.
    """
    if isinstance(template, str):
        template, named = number_columns(template, len(columns))
        columns = columns or tuple(column_sql(parts) for parts in named)
        template = F.lit(template)
    elif not isinstance(template, Column):
        raise PromptError(f"a template is {template!r}; accepted: a string, or a Column of strings")
    texts = [(F.col(column) if isinstance(column, str) else column).cast("string") for column in columns]
    arguments = F.array(*texts) if texts else F.array().cast("array<string>")
    return F.named_struct(F.lit("template"), template, F.lit("args"), arguments)


def ai_if(prompt: Column, **options: float | str | int | Iterable[int]) -> Column:
    """Whether the model answers TRUE to `prompt(…)`: a boolean column, NULL where a column it uses is NULL.

    Options: `selectivity`, the expected share of TRUE (0..1); `anchor`, what a join keeps of a row's KV, as a table's
    alias or the number(s) of placeholders; `max_error_ratio`, the share of a task's rows (0..1) that may be NULL because
    they can't be answered; `layout`, where the texts stand in the prompt. Raises ConfigError for others.
    """
    if not isinstance(prompt, Column):
        raise PromptError(f"ai_if() got {prompt!r}; accepted: prompt('… {{0}} …', column, …)")
    texts = {name: _option_text(value) for name, value in options.items()}
    parse_options(texts)
    pairs = [F.lit(text) for item in texts.items() for text in item]
    return ai_if_udf()(prompt, *([F.create_map(*pairs)] if pairs else []))


def ai_if_udf():
    """The carrier as a user-defined function of the current session."""
    from pyspark.sql.functions import pandas_udf

    from .carrier import ai_if

    return pandas_udf(ai_if, "boolean")


def ai_if_details_udf():
    """The carrier that also says why a row can't be answered."""
    from pyspark.sql.functions import pandas_udf

    from .carrier import ai_if_details

    return pandas_udf(ai_if_details, "value boolean, error string")


def _option_text(value) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, Iterable) and (numbers := list(value)) and all(type(number) is int for number in numbers):
        return anchor_text(numbers)
    raise ConfigError(f"an option's value is {value!r}; accepted: a number, a string, or numbers of placeholders")
