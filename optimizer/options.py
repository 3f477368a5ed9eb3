"""Options of an AI call: the map behind the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError
from .plan import LAYOUTS

ACCEPTED = ("selectivity", "anchor", "max_error_ratio", "layout")
LAYOUT_OPTIONS = (*LAYOUTS, "auto")
SHARES = ("selectivity", "max_error_ratio")


@dataclass(frozen=True)
class CallOptions:
    """`selectivity`: expected share of TRUE, 0..1. `anchor`: the table or alias whose rows' KV a join keeps.

    `max_error_ratio`: share of a task's rows, 0..1, that may be NULL because they can't be answered; None: as
    `spark.quail.onError` says. `layout`: one of `plan.LAYOUTS` or `auto`; None: as `spark.quail.prompt.layout` says.
    """

    selectivity: float | None = None
    anchor: str | None = None
    max_error_ratio: float | None = None
    layout: str | None = None

    def __post_init__(self):
        for name in SHARES:
            if (share := getattr(self, name)) is not None and not 0 <= share <= 1:
                raise ConfigError(f"option {name} is {share}; accepted: a number from 0 to 1")
        if self.layout not in (None, *LAYOUT_OPTIONS):
            raise ConfigError(f"option layout is {self.layout!r}; accepted: {', '.join(LAYOUT_OPTIONS)}")


def parse_options(given: Mapping[str, object]) -> CallOptions:
    """Read options as they stand in SQL or keyword arguments. Raises ConfigError for an unknown name or bad value."""
    for name in given:
        if name not in ACCEPTED:
            raise ConfigError(f"option {name!r} is not known to an AI call; accepted: {', '.join(ACCEPTED)}")
    anchor, layout = (None if given.get(name) is None else str(given[name]) for name in ("anchor", "layout"))
    shares = {name: _share(name, given[name]) for name in SHARES if given.get(name) is not None}
    return CallOptions(anchor=anchor, layout=layout, **shares)


def _share(name: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(f"option {name} is {value!r}; accepted: a number from 0 to 1") from None
