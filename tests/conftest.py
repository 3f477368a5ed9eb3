"""What tests of every part may ask for."""

import json
import os

import pytest

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTROL_NOT_SPECIAL = ["<think>", "</think>", "[INST]"]  # added tokens with special=False
CORPUS = [
    "TRUE FALSE True False true false the document asks for a refund and the reviewer liked the film very much",
    "Answer TRUE or FALSE. QUESTION: does the DOCUMENT support the claim? ANSWER: TRUE FALSE True False true false",
    "TRUE\nFALSE\nTrue\nFalse\ntrue\nfalse\n one two three four five six seven eight nine ten im_start im_end think INST",
]


def make_tokenizer(**changes):
    """A byte-level BPE of 400 to 500 entries, with control tokens both special and not; `changes` go to the tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in CONTROL_NOT_SPECIAL])
    given = {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given | changes)


@pytest.fixture(scope="session")
def tokenizer_of():
    """`make_tokenizer`."""
    return make_tokenizer


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """Directory of a random Qwen3: 4 KiB of KV a token in float32, context 1024."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path = tmp_path_factory.mktemp("tiny-qwen3")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(path)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    torch.manual_seed(20)
    Qwen3ForCausalLM(config).float().save_pretrained(path)
    assert json.loads((path / "config.json").read_text())["model_type"] == "qwen3"
    return path


@pytest.fixture(scope="session")
def real_model() -> str:
    """Directory of the default model. Tests skip without it, unless $QUAIL_SPARK_REQUIRE_MODEL is set (in CI)."""
    from quail_spark.errors import ModelError
    from quail_spark.models import default_model

    try:
        return default_model()
    except ModelError as error:
        if os.environ.get("QUAIL_SPARK_REQUIRE_MODEL"):
            raise
        pytest.skip(f"the default model is not here: {error}")
