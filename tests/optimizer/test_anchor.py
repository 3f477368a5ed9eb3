"""The anchor of one join from sizes of sides."""

import random

from make import H200

from quail_spark.optimizer.anchor import SideSize, choose_anchor


def tokens(anchor: SideSize, partner: SideSize) -> float:
    return anchor.rows * (anchor.text_bytes / 4 + 40 + partner.rows * partner.text_bytes / 4)


def test_fewest_tokens():
    rng = random.Random(1)
    for _ in range(200):
        left, right = (SideSize(rng.randint(1, 500), rng.randint(4, 9000)) for _ in range(2))
        other = tokens(left, right) > tokens(right, left)
        assert choose_anchor(left, right) == other


def test_long_texts_are_anchors():
    reports, terms = SideSize(500, 16_000), SideSize(1127, 12)
    assert choose_anchor(reports, terms) == choose_anchor(reports, terms, H200) == 0
    assert choose_anchor(terms, reports) == choose_anchor(terms, reports, H200) == 1


def test_what_is_unknown():
    assert choose_anchor(SideSize(None, 10.0), SideSize(5, 10.0)) is None
    assert choose_anchor(SideSize(10, None), SideSize(5, 10.0)) is None
    assert choose_anchor(SideSize(10, None, 100_000), SideSize(500, None, 5000)) == 0
    assert choose_anchor(SideSize(0, None, 0), SideSize(5, None, 10)) is None
    assert choose_anchor(SideSize(0, 10.0), SideSize(5, 10.0)) == 0
