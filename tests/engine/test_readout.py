"""Answer tokens and margins."""

import numpy as np
import pytest

from quail_spark.engine.readout import FALSE_FORMS, TRUE_FORMS, Readout
from quail_spark.optimizer.errors import ModelError


class Vocabulary:
    """Stands for `Tokens` where only single tokens matter."""

    def __init__(self, *texts: str):
        self.texts = list(texts)

    def single(self, text: str) -> int | None:
        return self.texts.index(text) if text in self.texts else None


def test_margin_is_the_log_ratio_of_probability_sums():
    vocabulary = Vocabulary("x", *TRUE_FORMS, "y", *FALSE_FORMS)
    readout = Readout.of(vocabulary)
    logits = np.random.default_rng(4).normal(0, 5, (50, len(vocabulary.texts))).astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    true = sum(shares[:, vocabulary.single(form)] for form in TRUE_FORMS)
    false = sum(shares[:, vocabulary.single(form)] for form in FALSE_FORMS)
    margins = readout.margins(logits[:, list(readout.ids)])
    np.testing.assert_allclose(margins, np.log(true / false), atol=1e-4)
    np.testing.assert_array_equal(margins > 0, true / (true + false) > 0.5)


def test_large_logits_do_not_overflow():
    readout = Readout.of(Vocabulary("TRUE", "FALSE"))
    np.testing.assert_allclose(readout.margins(np.array([[1e4, -1e4], [3e38, 0]], np.float32)), [2e4, 3e38])


def test_only_single_tokens_count():
    assert Readout.of(Vocabulary(" TRUE", "False", " false")) == Readout((0, 1, 2), 1)


@pytest.mark.parametrize(("texts", "missing"), [(("TRUE", "x"), "FALSE"), ((" false",), "TRUE"), ((), "TRUE")])
def test_a_side_without_a_form_is_refused(texts, missing):
    with pytest.raises(ModelError, match=f"no surface form of {missing}"):
        Readout.of(Vocabulary(*texts))


def test_the_tiny_vocabulary(tiny_checkpoint):
    from quail_spark.engine.tokens import Tokens

    tokens = Tokens.load(tiny_checkpoint)
    readout = Readout.of(tokens)
    assert {tokens.decode([i]) for i in readout.ids[: readout.trues]} <= set(TRUE_FORMS)
    assert {tokens.decode([i]) for i in readout.ids[readout.trues :]} <= set(FALSE_FORMS)


def test_not_a_number_stays_visible():
    readout = Readout.of(Vocabulary("TRUE", "FALSE"))
    assert not np.isfinite(readout.margins(np.array([[np.nan, 1], [np.inf, np.inf]], np.float32))).any()
