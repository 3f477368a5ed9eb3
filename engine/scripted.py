"""An evaluator without a model: `scripted://…`. A testing aid, and a measure of everything but the model.

Its answers are a public function of the template and the used texts, so tests can use that function as their oracle.
NULLs, duplicates, the memory of answers, the adaptive order and all counts go through the same session as a model's.

Model strings:
* `scripted://hash?rate=0.5&seed=7`   TRUE for a pseudo-random share `rate` of all (template, texts);
* `scripted://overlap`                TRUE when all texts share a word; a single text: when it shares one with the template;
* `scripted://contains?word=refund`   TRUE when the first used text contains the word.
Further parameters: `delay_ms` per model call; `fail_containing`: a text with it fails as a too long one would;
`calls=false`: don't count calls per (template, texts), for measurements over many rows.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from urllib.parse import parse_qsl, urlsplit

from quail_spark.optimizer.errors import ConfigError
from quail_spark.optimizer.plan import OperatorSpec
from quail_spark.optimizer.template import Literal, parse_template

from .answer_store import open_store
from .config import EngineConfig
from .evaluator import Counts
from .memory import AnswerMemory
from .session import OperatorSession, Request, Shared, Window
from .sheet import Question

SCHEME = "scripted://"
MODES = ("hash", "overlap", "contains")
PARAMETERS = {
    "rate": float,
    "seed": int,
    "word": str,
    "delay_ms": float,
    "fail_containing": str,
    "calls": lambda text: {"true": True, "false": False}[text],
}


def scripted_answer(template: str, texts: Sequence[str], rate: float = 0.5, seed: int = 0) -> bool:
    """The answer of `scripted://hash`. `texts` are those of the used placeholders, in order of first use."""
    digest = blake2b(json.dumps([template, list(texts), seed]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rate * 2**64


def overlap_answer(template: str, texts: Sequence[str]) -> bool:
    """The answer of `scripted://overlap`; words are compared without letter case."""
    if len(texts) == 1:
        literals = (part.text for part in parse_template(template) if isinstance(part, Literal))
        texts = (*texts, " ".join(literals))
    return bool(set.intersection(*(set(re.findall(r"\w+", text.lower())) for text in texts))) if texts else False


def contains_answer(texts: Sequence[str], word: str) -> bool:
    """The answer of `scripted://contains`."""
    return bool(texts) and word in texts[0]


class Script:
    """A parsed `scripted://…` string. Raises ConfigError for an unknown mode or parameter."""

    def __init__(self, model: str):
        url = urlsplit(model)
        self.mode = url.netloc
        if url.scheme + "://" != SCHEME or self.mode not in MODES or url.path not in ("", "/"):
            accepted = ", ".join(SCHEME + mode for mode in MODES)
            raise ConfigError(f"spark.quail.model is {model!r}; accepted: {accepted}, with parameters after '?'")
        self.rate, self.seed, self.word, self.delay_ms, self.fail_containing, self.calls = 0.5, 0, "", 0.0, "", True
        for name, text in parse_qsl(url.query, keep_blank_values=True):
            try:
                setattr(self, name, PARAMETERS[name](text))
            except (KeyError, ValueError):
                raise ConfigError(
                    f"parameter {name}={text!r} of the model {model!r}; accepted: {', '.join(PARAMETERS)}, numbers "
                    "for rate, seed and delay_ms, true or false for calls"
                ) from None

    @property
    def identity(self) -> str:
        """All that answers depend on besides template and texts."""
        return f"{SCHEME}{self.mode} {self.rate} {self.seed} {self.word}"

    def answer(self, template: str, texts: Sequence[str]) -> bool:
        """The scripted answer."""
        if self.mode == "hash":
            return scripted_answer(template, texts, self.rate, self.seed)
        if self.mode == "overlap":
            return overlap_answer(template, texts)
        return contains_answer(texts, self.word)

    def error(self, texts: Sequence[str]) -> str | None:
        """Why these texts fail, if they do."""
        if self.fail_containing and any(self.fail_containing in text for text in texts):
            return f"a text contains {self.fail_containing!r}, which the scripted model is told to fail on"
        return None


class ScriptedEvaluator:
    """An `Evaluator` (see evaluator.py) over a `Script`."""

    def __init__(self, config: EngineConfig):
        self._config, self.script = config, Script(config.model)
        self.store = open_store(config.answer_store, self.script.identity)
        self.shared = Shared(AnswerMemory(config.answer_memory, self.store))
        self.calls: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.model_calls = 0

    def open(self, spec: OperatorSpec) -> OperatorSession:
        """Start a stream."""
        return OperatorSession(spec, _ScriptedAnswerer(self, spec), self.shared)

    def describe(self) -> dict:
        """`calls` lists [template, texts, how often it was evaluated]; JSON-serialisable."""
        return {
            "model": self._config.model,
            "device": "none",
            "dtype": "none",
            "remembered_answers": len(self.shared.memory),
            "model_calls": self.model_calls,
            "calls": [[template, list(texts), n] for (template, texts), n in self.calls.items()],
        }

    def close(self) -> None:
        """Write what the store has yet to write."""
        if self.store is not None:
            self.store.close()


class _ScriptedQuestion(Question):
    __slots__ = ("margin", "source")


class _ScriptedAnswerer:
    """Tokens are words, so that reports have figures of the right kind."""

    def __init__(self, evaluator: ScriptedEvaluator, spec: OperatorSpec):
        self._evaluator, self._spec = evaluator, spec

    def questions(self, requests: list[Request]) -> list[Question]:
        return [self._question(self._spec.predicates[p].template, texts) for p, texts in requests]

    def _question(self, template: str, texts: tuple[str, ...]) -> Question:
        script = self._evaluator.script
        key = blake2b(json.dumps([template, texts]).encode(), digest_size=16).digest()
        lengths = [len(text.split()) for text in (*texts[:1], template, *texts[1:])]
        question = _ScriptedQuestion(key, sum(lengths), lengths[0] if texts else 0, script.error(texts))
        question.source = (template, texts)
        question.margin = 1.0 if script.answer(template, texts) else -1.0
        return question

    def windows(self, pending: list[list[Question]]) -> list[Window]:
        return [Window(list(range(len(pending))))]

    def launch(
        self, now: list[_ScriptedQuestion], later: list[Question], counts: Counts, check: Callable[[], None]
    ) -> Callable[[], list[float]]:
        check()
        with self._evaluator.shared.model_lock:
            started = time.perf_counter()
            self._evaluator.model_calls += 1
            if self._evaluator.script.calls:
                self._evaluator.calls.update(question.source for question in now)
            if self._evaluator.script.delay_ms:
                time.sleep(self._evaluator.script.delay_ms / 1000)
            counts.fresh_tokens += sum(question.length for question in now)
            counts.seconds += time.perf_counter() - started
        return lambda: [question.margin for question in now]

    def keep(self, questions: list[Question]) -> None:
        """Nothing is kept."""

    def retain(self, questions: list[Question]) -> None:
        """Nothing is kept."""
