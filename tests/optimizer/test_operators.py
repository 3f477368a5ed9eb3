"""Estimates of single operators as the connector plans them, against the formulas of work."""

import pytest
from make import H200, context

from quail_spark.optimizer.anchor import SideSize
from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.explain import operator_line
from quail_spark.optimizer.operators import estimate_operator
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate
from quail_spark.optimizer.work import Length, ask_pairs, pairs_until_true

BODY, PARTNER = Argument(0), Argument(0, partner=True)


def join(selectivity: float | None = 0.1) -> OperatorSpec:
    predicate = Predicate("{1} fits {0}", (BODY, PARTNER), (0,), selectivity)
    return OperatorSpec("j", "pairs", (predicate,))


def expected(pairs: float, anchors: float = 100.0):
    """Of `join`: anchors of 400 tokens behind 10 bytes of label, partners of 5 tokens."""

    def text(tokens: float) -> Length:
        return Length(tokens, 1.43 * tokens**2)

    frame = Length.exactly((len("\n\nQUESTION: document B fits the document\nAnswer TRUE or FALSE.") + 14) / 4)
    anchor = Length.exactly(10 / 4) + text(400)
    return ask_pairs(anchors, pairs, anchor, frame, text(5) + Length.exactly(5))


SIZES = (SideSize(100, 1600.0), SideSize(50, 20.0))


def test_a_join_of_every_kind():
    inner = estimate_operator(join(), SIZES, context())
    assert inner.work.fresh == pytest.approx(expected(5000).fresh)
    assert inner.seconds.total == pytest.approx(H200(expected(5000)))
    assert inner.rows_out == pytest.approx(500)
    keyed = estimate_operator(join(), SIZES, context(), pairs=200)
    assert keyed.work.fresh == pytest.approx(expected(200).fresh)
    semi = estimate_operator(join(), SIZES, context(), "semi")
    assert semi.work.answers == pytest.approx(100 * pairs_until_true(50, 0.1))
    assert semi.rows_out == pytest.approx(100 * (1 - 0.9**50))
    assert estimate_operator(join(), SIZES, context(), "left").rows_out == pytest.approx(500 + 100 * 0.9**50)


def test_filters_and_answers():
    predicates = (
        Predicate("{0} is a", (BODY,), None, 0.5),
        Predicate("{0} is b, unlike {1}", (BODY, Argument(1)), (1,)),
    )
    size = SideSize(1000, 800.0)
    filtered = estimate_operator(OperatorSpec("f", "filter", predicates), (size,), context())
    assert [q.asked for q in filtered.questions] == [1000, 500]
    assert filtered.rows_out == pytest.approx(1000 * 0.5 * 0.2)
    answered = estimate_operator(OperatorSpec("a", "answers", predicates), (size,), context())
    assert [q.asked for q in answered.questions] == [1000, 1000]
    assert answered.rows_out == 1000


def test_what_is_unknown_is_assumed():
    nothing = estimate_operator(join(), (SideSize(None, None), SideSize(None, None)), context())
    assert nothing.work.answers == 1_000_000
    sized = estimate_operator(join(), (SideSize(100, None, 160_000), SideSize(50, 20.0)), context())
    assert sized.work.fresh == pytest.approx(expected(5000).fresh)
    with pytest.raises(ConfigError, match="got 1 inputs for operator 'j'; accepted: 2"):
        estimate_operator(join(), SIZES[:1], context())


def test_the_line():
    line = operator_line(estimate_operator(join(), SIZES, context(price=4.0)), context(price=4.0))
    assert line.startswith("about 5.0k answers, 92.2k tokens computed, 2.1M spared; ")
    assert "on H200 (speed of light" in line and "<$0.01" in line
