"""A report as a figure. Needs matplotlib, which is imported when a plot is asked for. Driver-side."""

from typing import TYPE_CHECKING

from quail_spark.optimizer.errors import SetupError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .reporting import Report

TOKENS = (("fresh", "C0"), ("recomputed", "C3"), ("reused", "C2"))
_LONGEST = 48  # characters of a label


def plot(report: "Report") -> "Figure":
    """Prompt tokens of each operator, and the pass rate of each predicate. Raises SetupError without matplotlib."""
    try:
        import matplotlib.pyplot  # noqa: F401 (makes notebooks show figures)
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError(f"a plot needs matplotlib ({error}); install it with: pip install matplotlib") from None
    rates = sum(len(operator.predicates) for operator in report.operators)
    heights = [max(1, len(report.operators)), max(1, rates)]
    figure = Figure(figsize=(9, 2 + 0.45 * sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    _tokens(above, report)
    _rates(below, report)
    return figure


def _tokens(axes: "Axes", report: "Report") -> None:
    names = [operator.name for operator in report.operators]
    before = [0] * len(names)
    for kind, colour in TOKENS:
        counts = [tokens(operator)[kind] for operator in report.operators]
        axes.barh(range(len(names)), counts, left=before, color=colour, label=kind)
        before = [a + b for a, b in zip(before, counts, strict=True)]
    _label(axes, names, "prompt tokens")
    axes.legend(loc="best")


def tokens(operator) -> dict[str, int]:
    """Tokens of an OperatorReport in parts that add up: here `fresh` is without those computed again."""
    return {
        "fresh": operator.fresh_tokens - operator.recomputed_tokens,
        "recomputed": operator.recomputed_tokens,
        "reused": operator.reused_tokens,
    }


def _rates(axes: "Axes", report: "Report") -> None:
    predicates = [predicate for operator in report.operators for predicate in operator.predicates]
    rates = [predicate.passed / predicate.asked if predicate.asked else 0.0 for predicate in predicates]
    bars = axes.barh(range(len(rates)), rates, color="C0")
    axes.bar_label(bars, [f"{p.passed:,} of {p.asked:,}" for p in predicates], padding=3)
    axes.set_xlim(0, 1.25)
    _label(axes, [" ".join(p.question.split()) for p in predicates], "share of TRUE")


def _label(axes: "Axes", names: list[str], unit: str) -> None:
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    axes.set_yticks(range(len(short)), [name.replace("$", r"\$") for name in short])
    axes.invert_yaxis()
    axes.set_xlabel(unit)
