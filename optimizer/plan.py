"""What an operator asks of the engine: plain, immutable, JSON-serialisable. Built on the driver, read by workers and engine."""

import json
from dataclasses import asdict, dataclass, field

from .errors import ConfigError
from .template import check_arguments, placeholders

LAYOUTS = ("document_first", "literal")

# Codes of an answer (int8). A filter keeps a row when every predicate answered TRUE.
TRUE, FALSE, NULL, SKIPPED, FAILED = 1, 0, -1, -2, -3


@dataclass(frozen=True)
class Argument:
    """Where a template's argument comes from: column `column` of the anchor row, or of the partner row."""

    column: int
    partner: bool = False


@dataclass(frozen=True)
class Predicate:
    """One question: a template and, for its placeholder `{i}`, `arguments[i]`.

    `anchor` names the placeholders whose text stands before the question in the layout `document_first`; the others
    stand behind it. None means the first placeholder of the template. The rendered prompt depends on template,
    texts, `anchor` and layout only, never on the plan that evaluates it.
    `selectivity` is the expected share of TRUE (0..1) and only starts the order of predicates. `max_error_ratio` is the
    share of a task's answers (0..1) that may fail; None: as `spark.quail.onError` says. `layout`: None: the operator's.
    """

    template: str
    arguments: tuple[Argument, ...]
    anchor: tuple[int, ...] | None = None
    selectivity: float | None = None
    max_error_ratio: float | None = None
    layout: str | None = None

    def __post_init__(self):
        check_arguments(self.template, len(self.arguments))
        for name in ("selectivity", "max_error_ratio"):
            if (share := getattr(self, name)) is not None and not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}; accepted: a number from 0 to 1 (predicate {self.template!r})")

    @property
    def used(self) -> tuple[int, ...]:
        """Indices of the arguments that the template uses; a NULL in one of them makes the answer NULL."""
        return placeholders(self.template)


@dataclass(frozen=True)
class OperatorSpec:
    """One AI operator of a physical plan.

    `kind`:
    * `answers`: every predicate is answered for every row;
    * `filter`: predicates are tried in an adaptive order, a row leaves at its first answer that is not TRUE;
    * `pairs`: rows are (anchor, block of partners); each pair is tried like a row of `filter`.
    `name` identifies the operator in reports and shares observed pass rates among its tasks.
    `retain`: a later operator of the plan asks about the same documents, so the KV of those that pass is kept for it.
    """

    name: str
    kind: str
    predicates: tuple[Predicate, ...]
    layout: str = "document_first"
    version: int = field(default=1)
    retain: bool = False

    def __post_init__(self):
        if self.kind not in ("answers", "filter", "pairs"):
            raise ConfigError(f"operator kind is {self.kind!r}; accepted: answers, filter, pairs")
        for layout in (self.layout, *(p.layout or self.layout for p in self.predicates)):
            if layout not in LAYOUTS:
                raise ConfigError(f"spark.quail.prompt.layout is {layout!r}; accepted: {', '.join(LAYOUTS)}")

    def to_json(self) -> str:
        """Stable text: equal specs give equal bytes, so that Spark can reuse exchanges."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "OperatorSpec":
        """Inverse of `to_json`."""
        raw = json.loads(text)
        predicates = tuple(
            Predicate(
                p["template"],
                tuple(Argument(**a) for a in p["arguments"]),
                None if p["anchor"] is None else tuple(p["anchor"]),
                p["selectivity"],
                p.get("max_error_ratio"),
                p.get("layout"),
            )
            for p in raw["predicates"]
        )
        return OperatorSpec(
            raw["name"], raw["kind"], predicates, raw["layout"], raw["version"], raw.get("retain", False)
        )
