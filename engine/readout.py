"""From the logits of answer tokens to a margin: every surface form of TRUE against every one of FALSE."""

from dataclasses import dataclass

import numpy as np

from quail_spark.optimizer.errors import ModelError

from .tokens import Tokens

TRUE_FORMS = ("TRUE", " TRUE", "True", " True", "true", " true")
FALSE_FORMS = ("FALSE", " FALSE", "False", " False", "false", " false")


@dataclass(frozen=True)
class Readout:
    """`ids`: the answer tokens, those of TRUE first; `trues`: how many are TRUE's."""

    ids: tuple[int, ...]
    trues: int

    @staticmethod
    def of(tokens: Tokens) -> "Readout":
        """All forms that are single tokens of this vocabulary. Raises ModelError when a side has none."""
        true, false = (
            tuple(dict.fromkeys(id_ for form in forms if (id_ := tokens.single(form)) is not None))
            for forms in (TRUE_FORMS, FALSE_FORMS)
        )
        for name, ids, forms in (("TRUE", true, TRUE_FORMS), ("FALSE", false, FALSE_FORMS)):
            if not ids:
                raise ModelError(
                    f"no surface form of {name} is a single token of this model; accepted: a vocabulary with one of "
                    f"{', '.join(map(repr, forms))}"
                )
        if shared := set(true) & set(false):
            raise ModelError(f"TRUE and FALSE are the same token(s) {sorted(shared)} in this model")
        return Readout(true + false, len(true))

    def margins(self, logits: np.ndarray) -> np.ndarray:
        """log P(TRUE) − log P(FALSE) (float32 [n]) from the logits of `ids` (float32 [n, len(ids)]).

        The softmax's normaliser is the same for both sides and cancels.
        """
        logits = np.asarray(logits, np.float32)
        return _logsumexp(logits[:, : self.trues]) - _logsumexp(logits[:, self.trues :])


def _logsumexp(logits: np.ndarray) -> np.ndarray:
    highest = logits.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # what is not a number stays so, and fails its row
        return (highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)))[:, 0]
