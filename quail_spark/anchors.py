"""The option `anchor`: which arguments' text stands first, so that a join keeps its KV."""

import re
from collections.abc import Iterable

from quail_spark.optimizer.errors import ConfigError

_NUMBERS = re.compile(r"\d+(,\d+)*")


def anchor_text(placeholders: Iterable[int]) -> str:
    """The option's value for placeholders {0}, {2}: `0,2`."""
    return ",".join(map(str, placeholders))


def anchor_placeholders(anchor: str | None, arguments: int) -> tuple[int, ...] | None:
    """The placeholders that the option names by number; None when it is not given or names a table.

    Raises ConfigError for a number without an argument (there are `arguments`).
    """
    if anchor is None or not _NUMBERS.fullmatch(anchor):
        return None
    numbers = tuple(dict.fromkeys(map(int, anchor.split(","))))
    if max(numbers) >= arguments:
        raise ConfigError(
            f"option anchor is {anchor!r} but the prompt has {arguments} arguments; accepted: their numbers, from 0"
        )
    return numbers
