"""The evaluator over a language model: which KV is kept between the waves of a call, and between calls."""

from collections.abc import Callable, Iterable
from itertools import accumulate

import numpy as np

from quail_spark.optimizer.plan import OperatorSpec

from .answer_store import open_store
from .config import EngineConfig
from .evaluator import Counts
from .kv import KVNode
from .memory import AnswerMemory
from .prefix_tree import Path, build
from .prompts import PROMPT_VERSION
from .readout import Readout
from .rendering import PromptQuestion, Renderer, TokenCache
from .retained import Retained, worth
from .runner import Runner
from .scheduler import Outcome, Scheduler, Task
from .session import OperatorSession, Request, Shared, Window
from .sharing import Room
from .tokens import Tokens
from .windows import split_by_pages


class ModelEvaluator:
    """An `Evaluator` (see evaluator.py). `identity` names the model's content in the keys of remembered answers
    (see model_identity.py)."""

    def __init__(self, config: EngineConfig, tokens: Tokens, readout: Readout, runner: Runner, identity: str):
        self._config, self.tokens, self.readout, self.runner, self.identity = config, tokens, readout, runner, identity
        self.scheduler = Scheduler(runner, runner.plan.token_budget)
        self.cache = TokenCache(tokens)
        self.keepers = Keepers(runner)
        self.retained = Retained(runner.page_pool)
        pages = runner.page_pool.total_pages
        self.store = open_store(config.answer_store, f"{identity} prompt {PROMPT_VERSION}")
        self.shared = Shared(AnswerMemory(config.answer_memory, self.store), Room(pages * 3 // 4))

    @staticmethod
    def load(config: EngineConfig) -> "ModelEvaluator":
        """Find, read and place the model. Raises ModelError or ConfigError."""
        from .loader import load_model, resolve_checkpoint
        from .model_identity import model_identity

        path = resolve_checkpoint(config.model)
        tokens = Tokens.load(path)
        readout = Readout.of(tokens)
        model = load_model(path, device=config.device, dtype=config.dtype, fp8=config.fp8)
        runner = Runner(model, config, readout.ids)
        model.warm_up(runner)
        identity = model_identity(path, model.config, model.dtype, model.fp8, readout, config.kv)
        return ModelEvaluator(config, tokens, readout, runner, identity)

    def open(self, spec: OperatorSpec) -> OperatorSession:
        """Start a stream."""
        renderer = Renderer(self.tokens, self.cache, spec, self.identity, self.runner.max_context)
        return OperatorSession(spec, ModelAnswerer(self, spec, renderer.questions), self.shared)

    def describe(self) -> dict:
        """The runner's facts and what this evaluator holds; JSON-serialisable."""
        return {
            **self.runner.describe(),
            "model": self._config.model,
            "chat_template": self.tokens.chat is not None,
            "remembered_answers": len(self.shared.memory),
            "retained_documents": len(self.retained),
        }

    def close(self) -> None:
        """Drop all KV, and write what the store has yet to write."""
        if self.store is not None:
            self.store.close()
        with self.shared.model_lock:
            self.keepers.drop_all()
            self.retained.clear()


class Keepers:
    """The answerers that keep KV between calls. Used under the model lock.

    An answerer in the middle of a call is not among them: what it keeps is what its next wave needs.
    """

    def __init__(self, runner: Runner):
        self._pool = runner.page_pool
        self._answerers: dict[ModelAnswerer, None] = {}

    def add(self, answerer: "ModelAnswerer") -> None:
        """It keeps KV for its next call."""
        self._answerers[answerer] = None

    def make_room(self, pages: int) -> None:
        """They drop what they keep until `pages` are free, first what costs least to compute again."""
        for answerer in sorted(self._answerers, key=ModelAnswerer.worth):
            if self._pool.free_pages >= pages:
                return
            answerer.give_way()

    def forget(self, answerer: "ModelAnswerer") -> None:
        """It keeps nothing any more."""
        self._answerers.pop(answerer, None)

    def drop_all(self) -> None:
        """Every answerer drops what it keeps."""
        for answerer in list(self._answerers):
            answerer.give_way()


class ModelAnswerer:
    """An `Answerer` (see session.py). Keeps KV by the key of the section where it ends."""

    def __init__(
        self,
        evaluator: ModelEvaluator,
        spec: OperatorSpec,
        questions: Callable[[list[Request]], list[PromptQuestion]],
    ):
        """`questions` renders prompts: `Renderer.questions`, but for measurements over ready token ids."""
        self._evaluator, self._spec, self.questions = evaluator, spec, questions
        pool = evaluator.runner.page_pool
        self._pool, self._room = pool, pool.total_pages // 2  # pages for KV that is kept from wave to wave
        self._kept: dict[bytes, KVNode] = {}
        self._computed: set[bytes] = set()  # sections that were to be kept, whether or not they still are

    def windows(self, pending: list[list[PromptQuestion]]) -> list[Window]:
        if self._spec.kind == "answers":  # everything is asked in one wave
            return [Window(list(range(len(pending))))]
        least = 1 if self._spec.retain else 2
        return split_by_pages(pending, self._pool, self._room, self._spec.kind == "filter", least)

    def launch(
        self,
        now: list[PromptQuestion],
        later: list[PromptQuestion],
        counts: Counts,
        check: Callable[[], None],
    ) -> Callable[[], np.ndarray]:
        needed, wanted = self._keys(now), self._keys(later)
        if self._spec.retain:
            wanted |= {question.document_key for question in now}
        with self._evaluator.shared.model_lock:
            tasks = self._prepared(now, needed, wanted, counts)
        parts = self._evaluator.scheduler.parts(tasks)
        outcomes = self._evaluator.shared.turn.each(parts, lambda part: self._launched(part, counts, check))
        self._computed |= needed & wanted

        def margins() -> np.ndarray:
            logits: dict[int, np.ndarray] = {}
            for outcome in outcomes:
                found, seconds = outcome.logits()
                logits |= found
                counts.seconds += seconds
            return self._evaluator.readout.margins(np.stack([logits[index] for index in range(len(now))]))

        return margins

    def _prepared(
        self, now: list[PromptQuestion], needed: set[bytes], wanted: set[bytes], counts: Counts
    ) -> list[Task]:
        """Trees over `now`: no KV is kept but what is needed or wanted."""
        self._evaluator.keepers.forget(self)
        self._drop_all_but(needed | wanted)
        self._take_retained(now)
        counts.recomputed_tokens += self._lost_tokens(now) + self._evaluator.retained.regret(now)
        return self._tasks(now, wanted)

    def _launched(self, part: list[Task], counts: Counts, check: Callable[[], None]) -> Outcome:
        """One part of a wave. Between parts others launch, and take pages; what nobody computes with gives way then."""
        check()
        with self._evaluator.shared.model_lock:
            self._make_room(part)
            outcome = self._evaluator.scheduler.run(part)
            self._kept.update(outcome.kept)
        counts.fresh_tokens += outcome.fresh_tokens
        counts.recomputed_tokens += outcome.recomputed_tokens
        return outcome

    def _make_room(self, part: list[Task]) -> None:
        """For all of it, or for half of the pages: a larger part is computed in groups."""
        trees = [self._evaluator.scheduler.pages(task) for task in part]
        pages = min(sum(trees), max(self._room, *trees)) if trees else 0
        if self._pool.free_pages < pages:
            self._evaluator.retained.make_room(pages)
            self._evaluator.keepers.make_room(pages)

    def keep(self, questions: list[PromptQuestion]) -> None:
        keys = self._keys(questions)
        self._drop_all_but(keys)
        self._computed &= keys
        if self._kept:
            self._evaluator.keepers.add(self)
        else:
            self._evaluator.keepers.forget(self)

    def retain(self, questions: list[PromptQuestion]) -> None:
        for key in {question.document_key for question in questions}:
            if key in self._kept:
                self._evaluator.retained.put(key, self._kept[key])

    def worth(self) -> float:
        """Of what is kept, by the page: its dearest part."""
        return max(map(worth, self._kept.values()), default=0.0)

    def give_way(self) -> None:
        """Drop what is kept, for another session; it is computed again when this one needs it."""
        self._drop_all_but(set())
        self._evaluator.keepers.forget(self)

    def _tasks(self, questions: list[PromptQuestion], wanted: set[bytes]) -> list[Task]:
        """Prefix trees over the prompts, each behind the KV that is kept already."""
        paths: dict[KVNode | None, list[Path]] = {}
        for index, question in enumerate(questions):
            sections = self._sections(question)
            start, root = self._deepest_kept([*sections, (len(question.parts[0]), question.document_key)])
            skip = sum(depth <= start for depth in accumulate(map(len, question.parts)))
            marks = tuple((depth - start, key) for depth, key in sections if depth > start and key in wanted)
            paths.setdefault(root, []).append(Path(question.parts[skip:], marks, index))
        return [Task(node, root) for root, group in paths.items() for node in build(group)]

    def _take_retained(self, questions: list[PromptQuestion]) -> None:
        """Documents that an earlier operator's session left for this one."""
        if self._evaluator.retained:
            for key in {question.document_key for question in questions} - self._kept.keys():
                if (node := self._evaluator.retained.take(key)) is not None:
                    self._kept[key] = node

    def _sections(self, question: PromptQuestion) -> tuple[tuple[int, bytes], ...]:
        """With a single predicate nobody needs the document without the frame, unless another operator does."""
        if question.sections is None:
            document, frame, _ = map(len, question.parts)
            sections = [(document, question.document_key)] if document else []
            if frame:
                framed = (document + frame, question.frame_key)
                several = len(self._spec.predicates) > 1 or self._spec.retain
                sections = [*sections, framed] if several else [framed]
            question.sections = tuple(sections)
        return question.sections

    def _keys(self, questions: Iterable[PromptQuestion]) -> set[bytes]:
        return {key for question in questions for _, key in self._sections(question)}

    def _deepest_kept(self, sections: list[tuple[int, bytes]]) -> tuple[int, KVNode | None]:
        return max(
            ((depth, self._kept[key]) for depth, key in sections if key in self._kept),
            default=(0, None),
            key=lambda kept: kept[0],
        )

    def _lost_tokens(self, questions: list[PromptQuestion]) -> int:
        """Tokens that were to be kept for these questions, but no page was left for them or another session took it."""
        lost: dict[bytes, int] = {}
        for question in questions:
            sections = self._sections(question)
            start, _ = self._deepest_kept(sections)
            for depth, key in sections:
                if depth > start and key in self._computed:
                    lost[key], start = depth - start, depth
        return sum(lost.values())

    def _drop_all_but(self, keys: set[bytes]) -> None:
        for key in self._kept.keys() - keys:
            self._kept.pop(key).release()
