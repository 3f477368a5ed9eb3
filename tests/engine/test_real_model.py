"""The default small model against transformers, where it has been fetched."""

import numpy as np
import pytest
import torch

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.loader import load_model
from quail_spark.engine.runner import Runner, Segment

WORDS = ("TRUE", " TRUE", "True", " True", "FALSE", " FALSE", "False", " False")
TEXTS = (
    "The bank charged me twice for one transfer and nobody answers my letters. I want my money back.",
    "Thank you, the card arrived this morning and works well.",
    "Wie kann ich meine PIN ändern? 私のカードは届きませんでした。",
)
QUESTION = "\n\nDoes the text ask for a refund? Answer with TRUE or FALSE only."
TOLERANCE = 2e-4  # float32; its answer logits lie between about 10 and 30


@pytest.fixture(scope="module")
def prompts(real_model):
    """(document part, question part) of each prompt, and the answer ids."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "@@"}], tokenize=False, add_generation_prompt=True
    )
    head, tail = chat.split("@@")

    def encode(text: str) -> np.ndarray:
        return np.array(tokenizer.encode(text, add_special_tokens=False), np.int32)

    return [(encode(head + t), encode(QUESTION + tail)) for t in TEXTS], [encode(w)[0] for w in WORDS]


def test_logits_equal_transformers(real_model, prompts):
    """Whole prompts in one pass, and questions behind kept documents."""
    from transformers import AutoModelForCausalLM

    pairs, ids = prompts
    theirs = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.float32)
    whole = [np.concatenate(pair) for pair in pairs]
    with torch.inference_mode():
        want = np.stack([theirs(torch.from_numpy(t.astype(np.int64))[None]).logits[0, -1, ids].numpy() for t in whole])
    del theirs
    config = EngineConfig(model=real_model, dtype="float32", kv_bytes=64 << 20)
    runner = Runner(load_model(real_model, dtype="float32"), config, ids)
    packed, nodes = runner.run([Segment(t, keep=len(d)) for t, (d, _) in zip(whole, pairs, strict=True)])
    again, _ = runner.run([Segment(q, node) for (_, q), node in zip(pairs, nodes, strict=True)])
    np.testing.assert_allclose(packed, want, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(again, want, rtol=0, atol=TOLERANCE)
