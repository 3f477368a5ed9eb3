"""Options of an AI call: the map behind the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError

ACCEPTED = ("selectivity", "anchor")


@dataclass(frozen=True)
class CallOptions:
    """`selectivity`: expected share of TRUE, 0..1. `anchor`: the table or alias whose rows' KV a join keeps."""

    selectivity: float | None = None
    anchor: str | None = None

    def __post_init__(self):
        if self.selectivity is not None and not 0 <= self.selectivity <= 1:
            raise ConfigError(f"option selectivity is {self.selectivity}; accepted: a number from 0 to 1")


def parse_options(given: Mapping[str, object]) -> CallOptions:
    """Read options as they stand in SQL or keyword arguments. Raises ConfigError for an unknown name or bad value."""
    for name in given:
        if name not in ACCEPTED:
            raise ConfigError(f"option {name!r} is not known to an AI call; accepted: {', '.join(ACCEPTED)}")
    selectivity = given.get("selectivity")
    if selectivity is not None:
        try:
            selectivity = float(str(selectivity))
        except ValueError:
            raise ConfigError(f"option selectivity is {selectivity!r}; accepted: a number from 0 to 1") from None
    anchor = given.get("anchor")
    return CallOptions(selectivity, None if anchor is None else str(anchor))
