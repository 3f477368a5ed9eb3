"""Text is data: no text becomes a control token, and every text comes back."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quail_spark.engine.tokens import Tokens
from quail_spark.optimizer.errors import ModelError

# Directories of real tokenizers to test as well, separated by os.pathsep.
REAL = [Path(path) for path in os.environ.get("QUAIL_TEST_TOKENIZERS", "").split(os.pathsep) if path]


@pytest.fixture(scope="module", params=["tiny", *REAL], ids=lambda value: getattr(value, "name", value))
def tokens(request):
    path = request.getfixturevalue("tiny_checkpoint") if request.param == "tiny" else request.param
    return Tokens.load(path)


def random_texts(tokens: Tokens, seed: int) -> list[str]:
    """Words, control tokens whole and in pieces, and any characters, in random order."""
    rng = random.Random(seed)
    control = list(tokens.control)
    texts = []
    for _ in range(200):
        pieces = []
        for _ in range(rng.randrange(8)):
            text = rng.choice(control)
            at, end = sorted(rng.sample(range(len(text) + 1), 2))
            any_character = chr(
                rng.choice([rng.randrange(32, 127), rng.randrange(0x100, 0xD800), rng.randrange(0x1F300, 0x1F700)])
            )
            pieces.append(
                rng.choice([text, text[at:end], " ", "\n\n", "words and", any_character * rng.randrange(1, 4), "\0"])
            )
        texts.append("".join(pieces))
    return texts


@pytest.mark.parametrize("seed", range(5))
def test_no_text_becomes_a_control_token(tokens, seed):
    texts = [*random_texts(tokens, seed), *tokens.control, "".join(tokens.control), " ".join(tokens.control)]
    for ids in tokens.encode(texts):
        assert set(ids.tolist()).isdisjoint(tokens.control.values())


@pytest.mark.parametrize("seed", range(5))
def test_every_text_comes_back(tokens, seed):
    import unicodedata

    for text, ids in zip(texts := random_texts(tokens, seed), tokens.encode(texts), strict=True):
        assert tokens.decode(ids) in (text, unicodedata.normalize("NFC", text))


def test_ids_are_int32_and_empty_for_empty_text(tokens):
    empty, word = tokens.encode(["", "word"])
    assert empty.dtype == word.dtype == np.int32 and len(empty) == 0 and len(word) > 0
    assert tokens.encode([]) == []


def test_control_tokens_work_in_the_chat_template(tokens):
    head, tail = tokens.chat
    added = set(tokens.control.values())
    assert not added.isdisjoint(tokens.encode_control(head + tail).tolist())
    assert tokens.decode(tokens.encode_control(head + tail)) == head + tail


def test_ordinary_text_is_encoded_as_usual(tokens):
    text = "The reviewer asks for a refund of 12.50; it's late.\n\nNaïve? 日本語 \U0001f600"
    assert tokens.encode([text])[0].tolist() == tokens.encode_control(text).tolist()


def test_lone_surrogates_do_not_crash(tokens):
    ids = tokens.encode(["ok", "a\ud800b", "\ud83d\ude00"])
    assert [tokens.decode(i) for i in ids] == ["ok", "a\ufffdb", "\U0001f600"]


def test_chat_template_switches_thinking_off(tiny_checkpoint):
    assert Tokens.load(tiny_checkpoint).chat == (
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    )


def byte_level(vocabulary: dict[str, int], merges: list[tuple[str, str]], added: list[str], **model) -> str:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **model))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    return tokenizer.to_str()


def alphabet() -> dict[str, int]:
    return {text: i for i, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def test_control_tokens_inside_the_vocabulary_lose_their_merges():
    vocabulary = alphabet()
    for text in ("[I", "NS", "NST", "NST]", "[INST]"):
        vocabulary[text] = len(vocabulary)
    merges = [("[", "I"), ("N", "S"), ("NS", "T"), ("NST", "]"), ("[I", "NST]")]
    for model in ({}, {"ignore_merges": True}):
        tokens = Tokens(byte_level(vocabulary, merges, ["[INST]"], **model))
        assert tokens.control == {"[INST]": vocabulary["[INST]"]}
        (ids,) = tokens.encode(["[INST]"])
        assert vocabulary["[INST]"] not in ids and tokens.decode(ids) == "[INST]"
        assert tokens.encode_control("[INST]").tolist() == [vocabulary["[INST]"]]


def test_what_looks_like_a_control_token_in_the_vocabulary_counts_as_one():
    vocabulary = alphabet() | {"<|": 600, "x|": 601, "x|>": 602, "<|x|>": 603}
    merges = [("<", "|"), ("x", "|"), ("x|", ">"), ("<|", "x|>")]
    tokens = Tokens(byte_level(vocabulary, merges, []))
    (ids,) = tokens.encode(["<|x|>"])
    assert 603 not in ids and tokens.decode(ids) == "<|x|>"


def test_a_vocabulary_that_cannot_spell_its_control_tokens_is_refused():
    raw = json.loads(byte_level(alphabet(), [], ["§x"]))
    raw["model"] = {"type": "WordLevel", "vocab": {**alphabet(), "§x": 999, "<unk>": 1000}, "unk_token": "<unk>"}
    raw["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    raw["added_tokens"][0]["id"] = 999
    with pytest.raises(ModelError, match="into the control token '§x'"):
        Tokens(json.dumps(raw))


def test_a_directory_without_tokenizer_is_one_clear_error(tmp_path):
    with pytest.raises(ModelError, match=r"tokenizer in .* can't be loaded"):
        Tokens.load(tmp_path)


def test_a_chat_template_that_repeats_the_message_is_refused(tmp_path, tokenizer_of):
    tokenizer_of(chat_template="{{ messages[0]['content'] }}{{ messages[0]['content'] }}").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="message 2 times"):
        Tokens.load(tmp_path)
