"""From predicates and texts to token ids, each distinct text encoded once and each distinct section built once."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock

import numpy as np

from quail_spark.optimizer.plan import OperatorSpec
from quail_spark.optimizer.template import Placeholder

from .prompts import PROMPT_VERSION, Control, Part, lay_out
from .session import Request
from .sheet import Question
from .tokens import Tokens


@dataclass(slots=True, eq=False)
class PromptQuestion(Question):
    """A question with its prompt: `parts` are the token ids (int32) of document, frame and rest.

    Equal sections of one call are the same array. `document_key` and `frame_key` stand for the tokens up to the end of
    that section. `sections`: (depth in tokens, key) of the leading sections whose KV is worth keeping, shallow first; the
    answerer's note.
    """

    parts: tuple[np.ndarray, np.ndarray, np.ndarray] = ()
    document_key: bytes = b""
    frame_key: bytes = b""
    sections: tuple[tuple[int, bytes], ...] | None = None


class TokenCache:
    """Token ids of recent texts, for partners, which recur with each anchor. Thread-safe.

    Least recently used texts leave beyond `capacity` tokens (4 bytes each, and the text itself).
    """

    def __init__(self, tokens: Tokens, capacity: int = 8_000_000):
        self._tokens, self._room = tokens, capacity
        self._ids: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = Lock()

    def encode(self, texts: Iterable[str], remember: bool) -> dict[str, np.ndarray]:
        """Ids by text; with `remember`, later calls find them."""
        texts = list(dict.fromkeys(texts))
        with self._lock:
            found = {text: ids for text in texts if (ids := self._ids.get(text)) is not None}
            for text in found:
                self._ids.move_to_end(text)
        missing = [text for text in texts if text not in found]
        fresh = dict(zip(missing, self._tokens.encode(missing), strict=True))
        if remember:
            self._add(fresh)
        return found | fresh

    def _add(self, fresh: dict[str, np.ndarray]) -> None:
        with self._lock:
            for text, ids in fresh.items():
                if text not in self._ids:
                    self._ids[text] = ids
                    self._room -= len(ids) + 1
            while self._room < 0:
                self._room += len(self._ids.popitem(last=False)[1]) + 1


class Renderer:
    """Renders the prompts of one operator. `identity` names the model, so that keys of different models differ."""

    def __init__(self, tokens: Tokens, cache: TokenCache, spec: OperatorSpec, identity: str, max_context: int):
        self._cache, self._max_context = cache, max_context
        self._recurring = spec.kind == "pairs"
        self._base = blake2b(f"{identity}\0{PROMPT_VERSION}\0".encode(), digest_size=16)
        numbers: dict[tuple, int] = {}
        self._prompts = []
        for predicate in spec.predicates:
            prompt = lay_out(predicate, predicate.layout or spec.layout, tokens.chat)
            sections = (prompt.document, prompt.frame, prompt.rest)
            self._prompts.append([_Section(parts, predicate.used, tokens, numbers) for parts in sections])
            if tokens.chat is None:
                self._prompts[-1][0].pieces.insert(0, tokens.beginning())

    def questions(self, requests: list[Request]) -> list[PromptQuestion]:
        """One question per request; a prompt longer than the context gets an error."""
        ids = self._cache.encode((text for _, texts in requests for text in texts), remember=self._recurring)
        call = _Call(ids, self._base)
        return [self._question(call, self._prompts[p], texts) for p, texts in requests]

    def _question(self, call: "_Call", sections: list["_Section"], texts: tuple[str, ...]) -> PromptQuestion:
        keys = [section.key(texts) for section in sections]
        parts = tuple(call.array(section, key) for section, key in zip(sections, keys, strict=True))
        document = call.hash((keys[0],), parts[0], call.base)
        frame = call.hash((keys[0], keys[1]), parts[1], document)
        whole = frame.copy()
        whole.update(parts[2])
        length = sum(map(len, parts))
        error = None if length <= self._max_context else self._too_long(length)
        return PromptQuestion(whole.digest(), length, len(parts[0]), error, parts, document.digest(), frame.digest())

    def _too_long(self, length: int) -> str:
        return (
            f"the prompt has {length} tokens; accepted: at most {self._max_context} "
            "(the model's context, or spark.quail.engine.maxContext)"
        )


class _Section:
    """A section of a prompt with its constants encoded; sections that are laid out alike have the same number."""

    def __init__(self, parts: tuple[Part, ...], used: tuple[int, ...], tokens: Tokens, numbers: dict[tuple, int]):
        self._slots = [used.index(part.index) for part in parts if isinstance(part, Placeholder)]
        alike = tuple(None if isinstance(part, Placeholder) else part for part in parts)
        self._number = numbers.setdefault(alike, len(numbers))
        self.pieces = [_constant(part, tokens) for part in parts]

    def key(self, texts: tuple[str, ...]) -> tuple:
        """Equal for equal token ids: the layout's number and the texts in it, in order."""
        return (self._number, *(texts[slot] for slot in self._slots))

    def ids(self, key: tuple, encoded: dict[str, np.ndarray]) -> np.ndarray:
        """The token ids of the section whose key is `key`."""
        texts = iter(key[1:])
        pieces = [encoded[next(texts)] if piece is None else piece for piece in self.pieces]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int32)


def _constant(part: Part, tokens: Tokens) -> np.ndarray | None:
    if isinstance(part, Placeholder):
        return None
    return tokens.encode_control(part.text) if isinstance(part, Control) else tokens.encode([part.text])[0]


class _Call:
    """What the requests of one call share: encoded texts, built sections, and hashes of leading sections."""

    def __init__(self, encoded: dict[str, np.ndarray], base):
        self._encoded, self.base = encoded, base
        self._arrays: dict[tuple, np.ndarray] = {}
        self._hashes: dict[tuple, blake2b] = {}

    def array(self, section: _Section, key: tuple) -> np.ndarray:
        if (array := self._arrays.get(key)) is None:
            array = self._arrays[key] = section.ids(key, self._encoded)
        return array

    def hash(self, keys: tuple, ids: np.ndarray, before):
        """The state of the hash over the sections `keys`, of which `ids` are the last's tokens."""
        if (state := self._hashes.get(keys)) is None:
            state = self._hashes[keys] = before.copy()
            state.update(ids)
        return state
