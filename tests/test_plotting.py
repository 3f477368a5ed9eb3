"""A report as a figure."""

import builtins
import json

import pytest

from quail_spark.errors import SetupError
from quail_spark.plotting import tokens
from quail_spark.reporting import OperatorReport, PredicateReport, Report


def operator(name: str, *predicates: PredicateReport, **numbers) -> OperatorReport:
    given = dict(kind="filter", rows=10, evaluations=9, remembered=1, errors=0, seconds=0.5)
    given |= dict(fresh_tokens=700, reused_tokens=250, recomputed_tokens=50)
    return OperatorReport(name=name, predicates=predicates, **given | numbers)


@pytest.fixture
def report():
    refunds, polite = PredicateReport("{body} costs $5 or $6?", 10, 4), PredicateReport("never asked", 0, 0)
    return Report((operator("ai_filter-1", refunds, polite), operator("x" * 99, refunds, fresh_tokens=50)), ())


def test_bars_are_the_report(report):
    pytest.importorskip("matplotlib")
    figure = report.plot()
    figure.canvas.draw()
    above, below = figure.axes
    bars = [[bar.get_width() for bar in container] for container in above.containers]
    assert bars == [[650, 0], [50, 50], [250, 250]]
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["fresh", "recomputed", "reused"]
    assert [len(label.get_text()) for label in above.get_yticklabels()] == [11, 48]
    assert [bar.get_width() for bar in below.containers[0]] == [0.4, 0.0, 0.4]
    assert [text.get_text() for text in below.texts] == ["4 of 10", "0 of 0", "4 of 10"]


def test_a_report_without_operators_is_a_figure_too():
    pytest.importorskip("matplotlib")
    Report((), ()).plot().canvas.draw()


def test_parts_of_tokens_add_up(report):
    for one in report.operators:
        assert sum(tokens(one).values()) == one.fresh_tokens + one.reused_tokens


def test_without_matplotlib_the_error_says_what_to_install(report, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SetupError, match="pip install matplotlib"):
        report.plot()


def test_dict_is_plain_values(report):
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["operators"][0]["predicates"][0] == {"question": "{body} costs $5 or $6?", "asked": 10, "passed": 4}
    assert plain["operators"][0]["fresh_tokens"] == 700
