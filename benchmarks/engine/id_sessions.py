"""Sessions over ready token ids: what Spark's tasks would ask of the engine, without text."""

from collections.abc import Callable, Iterator
from hashlib import blake2b

import numpy as np
from workloads import Workload

from quail_spark.engine.evaluator import Answers
from quail_spark.engine.model_evaluator import ModelAnswerer, ModelEvaluator
from quail_spark.engine.rendering import PromptQuestion
from quail_spark.engine.session import OperatorSession, Request
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

ROWS = 256  # of a filter's call: the default of spark.quail.batch.rows
NOTHING = np.empty(0, np.int32)


class IdQuestions:
    """Renders requests whose texts are numbers of documents and partners; hashes ids as the engine's renderer does."""

    def __init__(self, workload: Workload):
        self._workload = workload
        self.partners = [[str(i)] for i in range(len(workload.partners))]

    def __call__(self, requests: list[Request]) -> list[PromptQuestion]:
        heads: dict[str, tuple] = {}
        return [self._question(heads, p, texts) for p, texts in requests]

    def _question(self, heads: dict, p: int, texts: tuple[str, ...]) -> PromptQuestion:
        w = self._workload
        if (head := heads.get(texts[0])) is None:
            document = w.documents[int(texts[0])]
            frame = NOTHING if w.frame is None else w.frame
            state = blake2b(document, digest_size=16)
            framed = state.copy()
            framed.update(frame)
            head = heads[texts[0]] = (document, frame, state.digest(), framed)
        document, frame, document_key, framed = head
        rest = w.partners[int(texts[1])] if w.kind == "pairs" else w.questions[p]
        whole = framed.copy()
        whole.update(rest)
        question = _Asked(
            whole.digest(),
            len(document) + len(frame) + len(rest),
            len(document),
            None,
            (document, frame, rest),
            document_key,
            framed.digest(),
        )
        question.asked = (p, *map(int, texts))
        return question


class _Asked(PromptQuestion):
    """`asked`: (predicate, document[, partner])."""

    __slots__ = ("asked",)


class Gate:
    """Which documents pass is the workload's, since weights are random; the model's own margins are noted."""

    def __init__(self, workload: Workload):
        self._workload = workload
        self.margins: dict[tuple[int, ...], float] = {}

    def __call__(self, asked: list[tuple[int, ...]], margins: np.ndarray) -> np.ndarray:
        self.margins.update(zip(asked, margins.tolist(), strict=True))
        if self._workload.kind == "pairs":
            return margins
        return np.array([1.0 if self._workload.passes[p][document] else -1.0 for p, document in asked])

    @staticmethod
    def prompt(workload: Workload, asked: tuple[int, ...]) -> np.ndarray:
        """The whole prompt that `asked` stands for."""
        p, document, *partner = asked
        if partner:
            return np.concatenate([workload.documents[document], workload.frame, workload.partners[partner[0]]])
        return np.concatenate([workload.documents[document], workload.questions[p]])


class _GatedAnswerer(ModelAnswerer):
    def __init__(self, *arguments, gate: Gate):
        super().__init__(*arguments)
        self._gate = gate

    def launch(self, now, *rest):
        margins = super().launch(now, *rest)
        return lambda: self._gate([question.asked for question in now], margins())


class _WrittenOrder:
    """Pass rates that keep predicates of equal cost as written: the workload fixes which prompts are asked."""

    def estimate(self, spec: OperatorSpec) -> list[float]:
        return [0.5] * len(spec.predicates)

    def observe(self, *_) -> None:
        """Learns nothing."""


def calls_of(
    workload: Workload,
    evaluator: ModelEvaluator,
    questions: IdQuestions,
    gate: Gate,
    part: int,
    parts: int,
    size: int = ROWS,
) -> Iterator[Callable[[], Answers]]:
    """The calls of one of `parts` streams, in order, over its contiguous share of the documents: `size` rows, or one anchor."""
    evaluator.shared.pass_rates = _WrittenOrder()
    count = len(workload.documents)
    mine = range(count * part // parts, count * (part + 1) // parts)
    if workload.kind == "pairs":
        predicates = (Predicate("{0} {1}", (Argument(0), Argument(0, partner=True))),)
    else:
        predicates = tuple(Predicate(f"{{0}} {p}", (Argument(0),)) for p in range(len(workload.questions)))
    spec = OperatorSpec(workload.name, workload.kind, predicates)
    session = OperatorSession(spec, _GatedAnswerer(evaluator, spec, questions, gate=gate), evaluator.shared)
    if workload.kind == "pairs":
        for anchor in mine:
            yield lambda anchor=anchor: session.pairs([[str(anchor)]], [anchor], [questions.partners])
    else:
        for start in range(mine.start, mine.stop, size):
            rows = [[str(i)] for i in mine[start - mine.start : start - mine.start + size]]
            yield lambda rows=rows: session.rows(rows)
    session.close()
