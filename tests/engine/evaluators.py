"""What tests of the model evaluator share: an oracle that runs every prompt whole and alone, and predicates."""

import torch

from quail_spark.engine.prompts import Control, lay_out
from quail_spark.engine.readout import FALSE_FORMS, TRUE_FORMS
from quail_spark.engine.tokens import Tokens
from quail_spark.optimizer.plan import Argument, Predicate
from quail_spark.optimizer.template import Placeholder

CONTEXT = 256  # tokens


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
