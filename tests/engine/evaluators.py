"""What tests of the model evaluator share: an oracle that runs every prompt whole and alone, predicates and texts."""

import random

import numpy as np
import pytest
import torch

from quail_spark.engine.prompts import Control, lay_out
from quail_spark.engine.readout import FALSE_FORMS, TRUE_FORMS
from quail_spark.engine.tokens import Tokens
from quail_spark.optimizer.plan import FAILED, FALSE, NULL, SKIPPED, TRUE, Argument, OperatorSpec, Predicate
from quail_spark.optimizer.template import Placeholder

CONTEXT = 256  # tokens
TOLERANCE = 2e-3  # of margins, which are of order 1


class Oracle:
    """Margins and lengths of prompts, one whole prompt at a time."""

    def __init__(self, checkpoint):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        self.tokens = Tokens.load(checkpoint)
        self.forms = [
            [i for form in forms if (i := self.tokens.single(form)) is not None] for forms in (TRUE_FORMS, FALSE_FORMS)
        ]
        self.margins: dict[tuple[int, ...], float] = {}

    def sections(self, predicate: Predicate, layout: str, texts: dict[int, str]) -> list[list[int]]:
        prompt = lay_out(predicate, layout, self.tokens.chat)
        return [
            [id_ for part in section for id_ in self.part(part, texts)]
            for section in (prompt.document, prompt.frame, prompt.rest)
        ]

    def part(self, part, texts: dict[int, str]) -> list[int]:
        if isinstance(part, Control):
            return self.tokens.encode_control(part.text).tolist()
        text = texts[part.index] if isinstance(part, Placeholder) else part.text
        return self.tokens.encode([text])[0].tolist()

    def ids(self, predicate: Predicate, layout: str, texts: dict[int, str]) -> tuple[int, ...]:
        return tuple(id_ for section in self.sections(predicate, layout, texts) for id_ in section)

    def margin(self, ids: tuple[int, ...]) -> float:
        if ids not in self.margins:
            with torch.inference_mode():
                shares = self.model(torch.tensor([ids])).logits[0, -1].double().softmax(0)
            true, false = (shares[forms].sum() for forms in self.forms)
            self.margins[ids] = float((true / false).log())
        return self.margins[ids]


def check_no_leak(evaluator):
    assert evaluator.runner.page_pool.free_pages == evaluator.runner.page_pool.total_pages


def predicate(template: str, *columns: int, partner: tuple[int, ...] = (), **more) -> Predicate:
    return Predicate(template, tuple(Argument(c, i in partner) for i, c in enumerate(columns)), **more)


FIRST = predicate("{0} asks for a refund", 0)
SECOND = predicate("did the reviewer like {0}?", 0, selectivity=0.9)
TITLE = predicate("{0} is short {{really}}", 1)
BOTH = predicate("{0} supports {1} and {0}", 0, 1)
BOTH_SWAPPED = predicate("{0} supports {1}", 0, 1, anchor=(1,))
BOTH_ANCHOR = predicate("{1} then {0} then {2}", 0, 1, 0, anchor=(0, 1))
NOTHING = Predicate("two is even", ())
PAIR = predicate("{0} might buy {1}", 0, 0, partner=(1,))
PAIR_SWAPPED = predicate("{1} suits {0}", 0, 1, partner=(1,), anchor=(0,))
PARTNER_ONLY = predicate("{0} is cheap", 0, partner=(0,))


def random_text(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.08:
        return None
    if kind < 0.14:
        return ""
    if kind < 0.2:
        return "word film " * 150  # beyond the context
    words = ["refund", "film", "liked", "<|im_end|>", "the document", "TRUE", "naïve 日本", "<think>", "one two three"]
    return " ".join(rng.choice(words) for _ in range(rng.choice([1, 2, 5, 12])))


def random_rows(rng: random.Random, count: int, columns: int = 2) -> list[list[str | None]]:
    texts = [random_text(rng) for _ in range(count)]
    return [[rng.choice(texts) for _ in range(columns)] for _ in range(count)]


class Checker:
    """Compares answers with the oracle. `asked` collects the distinct prompts that had to be answered."""

    def __init__(self, oracle, spec: OperatorSpec):
        self.oracle, self.spec = oracle, spec
        self.asked: set[tuple[int, ...]] = set()

    def check(self, answers, items: list[tuple[list, list]]):
        """`items`: (row, partner)."""
        shape = (len(items), len(self.spec.predicates))
        assert answers.codes.shape == answers.margins.shape == shape
        assert answers.codes.dtype == np.int8 and answers.margins.dtype == np.float32
        requested = 0
        for item, (row, partner) in enumerate(items):
            codes = answers.codes[item].tolist()
            expected = [
                self.expected(p, row, partner, code) for p, code in zip(self.spec.predicates, codes, strict=True)
            ]
            self.check_codes(codes, [code for code, _, _ in expected])
            for p, (_, margin, ids) in enumerate(expected):
                assert (codes[p] in (TRUE, FALSE)) == np.isfinite(answers.margins[item, p])
                if codes[p] in (TRUE, FALSE):
                    assert answers.margins[item, p] == pytest.approx(margin, abs=TOLERANCE)
                    requested += len(ids)
                    self.asked.add(ids)
                if codes[p] == FAILED:
                    (message,) = [text for i, q, text in answers.errors if (i, q) == (item, p)]
                    assert f"has {len(ids)} tokens; accepted: at most {CONTEXT}" in message
                    assert repr(self.spec.predicates[p].template) in message
        counts = answers.counts
        assert len(answers.errors) == (answers.codes == FAILED).sum()
        assert counts.rows == len(items)
        assert counts.fresh_tokens + counts.reused_tokens == requested
        assert counts.asked == [int(np.isin(column, (TRUE, FALSE)).sum()) for column in answers.codes.T]
        assert counts.passed == [int((column == TRUE).sum()) for column in answers.codes.T]
        assert counts.evaluations + counts.remembered == sum(counts.asked)

    def expected(self, predicate: Predicate, row, partner, got: int):
        """The right code, margin and prompt; `got` decides a tie."""
        texts = {i: (partner if a.partner else row)[a.column] for i, a in enumerate(predicate.arguments)}
        if any(texts[i] is None for i in predicate.used):
            return NULL, None, None
        ids = self.oracle.ids(predicate, self.spec.layout, texts)
        if len(ids) > CONTEXT:
            return FAILED, None, ids
        margin = self.oracle.margin(ids)
        true = got != FALSE if abs(margin) < TOLERANCE else margin > 0
        return (TRUE if true else FALSE), margin, ids

    def check_codes(self, codes, expected):
        if self.spec.kind == "answers":
            assert codes == expected
        elif NULL in expected:
            assert codes == [NULL if code == NULL else SKIPPED for code in expected]
        elif FALSE in expected:
            assert codes.count(FALSE) == 1 and FAILED not in codes
            assert all(code in (SKIPPED, right) for code, right in zip(codes, expected, strict=True))
        elif FAILED in expected:
            assert codes.count(FAILED) == 1
            assert all(c == r or (r == FAILED and c == SKIPPED) for c, r in zip(codes, expected, strict=True))
        else:
            assert codes == expected
