"""What planning knows besides the plan: model, device, settings, and how often questions were answered TRUE before."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import ConfigError
from .logical import AiPredicate
from .plan import LAYOUTS
from .roofline import Roofline
from .statistics import Number, pass_rate


@dataclass(frozen=True)
class PlanContext:
    """`layout`: one of `plan.LAYOUTS`, or `auto`: the cheaper. `observed`: by a question's words, answers and TRUE ones of
    earlier runs. `price`: money per hour of the device, None: cost is not shown. `chunk`: tokens per forward pass."""

    roofline: Roofline
    layout: str = "document_first"
    observed: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    price: float | None = None
    chunk: float = 32_768.0

    def __post_init__(self):
        if self.layout not in (*LAYOUTS, "auto"):
            raise ConfigError(f"spark.quail.prompt.layout is {self.layout!r}; accepted: {', '.join(LAYOUTS)}, auto")

    def rate(self, predicate: AiPredicate) -> Number:
        """Expected share of TRUE, and why."""
        return pass_rate(predicate.selectivity, *self.observed.get(predicate.words, (0, 0)))
