"""Parts of the tiny checkpoint (see tests/conftest.py), read once, and evaluators over them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def oracle(tiny_checkpoint):
    import torch
    from evaluators import Oracle

    torch.set_num_threads(1)
    return Oracle(tiny_checkpoint)


@pytest.fixture(scope="session")
def parts(tiny_checkpoint):
    """Tokens, readout and weights, read once."""
    from quail_spark.engine.loader import load_model
    from quail_spark.engine.readout import Readout
    from quail_spark.engine.tokens import Tokens

    tokens = Tokens.load(tiny_checkpoint)
    return tokens, Readout.of(tokens), load_model(tiny_checkpoint, dtype="float32")


@pytest.fixture
def evaluator_of(parts):
    """Makes evaluators, and checks at the end that no page has leaked."""
    from evaluators import CONTEXT, check_no_leak

    from quail_spark.engine.config import EngineConfig
    from quail_spark.engine.model_evaluator import ModelEvaluator
    from quail_spark.engine.runner import Runner

    made = []
    tokens, readout, model = parts

    def make(budget: int = 4096, kv_bytes: int = 64 << 20, **more):
        settings = dict(threads=1, max_context=CONTEXT, page_size=4, token_budget=budget, kv_bytes=kv_bytes)
        config = EngineConfig("tiny", **settings | more)
        made.append(ModelEvaluator(config, tokens, readout, Runner(model, config, readout.ids), "tiny"))
        return made[-1]

    yield make
    for evaluator in made:
        evaluator.close()
        check_no_leak(evaluator)
