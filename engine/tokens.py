"""Text to token ids. Text from tables, and what users write in templates, is data: it never becomes a control token."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from quail_spark.optimizer.errors import ModelError

_SENTINEL = "quailsentinel7f3a"
_AROUND = ("{}", " {}", "{} ", "x{}x", "\n{}\n", "{0}{0}", "0{}.")


class Tokens:
    """A model's vocabulary, in two versions: `encode` for data, `encode_control` for the chat template's own parts.

    `tokenizer_json` is the text of a `tokenizer.json`; `chat_head` and `chat_tail` are what the chat template puts
    before and behind a user's message and the start of the assistant's (None: the model has no chat template).
    Raises ModelError when a text could still become a control token.
    """

    def __init__(self, tokenizer_json: str, chat: tuple[str, str] | None = None):
        raw = json.loads(tokenizer_json)
        self._control = Tokenizer.from_str(tokenizer_json)
        self._control.no_truncation()
        self._control.no_padding()
        self.control = _control_tokens(raw)
        self._plain = Tokenizer.from_str(json.dumps(_without_control_tokens(raw, set(self.control))))
        self._check_plain()
        self.chat = chat

    @staticmethod
    def load(checkpoint: Path) -> "Tokens":
        """From a model's directory, through transformers; its remote code is never run. Raises ModelError."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(checkpoint), trust_remote_code=False)
        except Exception as error:
            raise ModelError(f"the tokenizer in {checkpoint} can't be loaded: {error}") from error
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"the tokenizer in {checkpoint} is {type(tokenizer).__name__}; accepted: a tokenizer.json")
        return Tokens(backend.to_str(), _chat_parts(tokenizer))

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""
        return self._control.get_vocab_size(with_added_tokens=True)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids (int32) of each text as data, in parallel. Lone surrogates become U+FFFD."""
        try:
            encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):
            texts = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
            encodings = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_control(self, text: str) -> np.ndarray:
        """Token ids (int32) of a part of the chat template, in which control tokens count as such."""
        return np.array(self._control.encode(text, add_special_tokens=False).ids, np.int32)

    def beginning(self) -> np.ndarray:
        """What the model wants before any text without a chat template: a beginning-of-sequence token, or nothing."""
        return np.array(self._control.encode("", add_special_tokens=True).ids, np.int32)

    def single(self, text: str) -> int | None:
        """The id of a text that is a single token, else None."""
        (ids,) = self.encode([text])
        return int(ids[0]) if len(ids) == 1 else None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, control tokens included."""
        return self._control.decode([int(i) for i in ids], skip_special_tokens=False)

    def _check_plain(self) -> None:
        control = set(self.control.values())
        for content in self.control:
            texts = [around.format(content) for around in _AROUND]
            for text, ids in zip(texts, self.encode(texts), strict=True):
                if not control.isdisjoint(ids.tolist()):
                    raise ModelError(
                        f"the tokenizer turns the text {text!r} into the control token {content!r}, so a row could "
                        "write prompts; accepted: a vocabulary that can spell its control tokens as ordinary text"
                    )


def _control_tokens(raw: dict) -> dict[str, int]:
    """Ids of all added tokens, special or not, and of what looks like one in the vocabulary, where conversions leave some."""
    added = {token["content"]: token["id"] for token in raw["added_tokens"]}
    vocabulary = raw["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        return added
    return {token: id_ for token, id_ in vocabulary.items() if token[:2] == "<|" and token[-2:] == "|>"} | added


def _without_control_tokens(raw: dict, control: set[str]) -> dict:
    """The tokenizer without added tokens, neither as such nor as entries of a BPE vocabulary, and without a template."""
    plain = {**raw, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    model = raw["model"]
    if model.get("type") != "BPE":
        return plain
    inside = {token for token in control & model["vocab"].keys() if len(token) > 1}
    if inside:
        gone = inside - {model.get("unk_token")}  # which must stay, though nothing may spell it
        vocab = {token: id_ for token, id_ in model["vocab"].items() if token not in gone}
        merges = [merge for merge in model["merges"] if inside.isdisjoint(_merged(merge))]
        plain["model"] = {**model, "vocab": vocab, "merges": merges}
    return plain


def _merged(merge: str | list[str]) -> tuple[str, str, str]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right


def _chat_parts(tokenizer) -> tuple[str, str] | None:
    """What the chat template puts around a user's message; thinking is switched off where the template can."""
    if not tokenizer.chat_template:
        return None
    try:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": _SENTINEL}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
    except Exception as error:
        raise ModelError(f"the chat template of {tokenizer.name_or_path} can't be rendered: {error}") from error
    if text.count(_SENTINEL) != 1:
        raise ModelError(
            f"the chat template of {tokenizer.name_or_path} has the user's message {text.count(_SENTINEL)} times; accepted: once"
        )
    head, tail = text.split(_SENTINEL)
    return head, tail
