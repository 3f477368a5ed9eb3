"""Options of an AI call: the map behind the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError

ACCEPTED = ("selectivity", "anchor", "max_error_ratio")
SHARES = ("selectivity", "max_error_ratio")


@dataclass(frozen=True)
class CallOptions:
    """`selectivity`: expected share of TRUE, 0..1. `anchor`: the table or alias whose rows' KV a join keeps.

    `max_error_ratio`: share of a task's rows, 0..1, that may be NULL because they can't be answered; None: as
    `spark.quail.onError` says.
    """

    selectivity: float | None = None
    anchor: str | None = None
    max_error_ratio: float | None = None

    def __post_init__(self):
        for name in SHARES:
            if (share := getattr(self, name)) is not None and not 0 <= share <= 1:
                raise ConfigError(f"option {name} is {share}; accepted: a number from 0 to 1")


def parse_options(given: Mapping[str, object]) -> CallOptions:
    """Read options as they stand in SQL or keyword arguments. Raises ConfigError for an unknown name or bad value."""
    for name in given:
        if name not in ACCEPTED:
            raise ConfigError(f"option {name!r} is not known to an AI call; accepted: {', '.join(ACCEPTED)}")
    anchor = given.get("anchor")
    shares = {name: _share(name, given[name]) for name in SHARES if given.get(name) is not None}
    return CallOptions(anchor=None if anchor is None else str(anchor), **shares)


def _share(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(f"option {name} is {value!r}; accepted: a number from 0 to 1") from None
