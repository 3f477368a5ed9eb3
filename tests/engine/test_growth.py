"""What an engine holds does not grow with the rows that it has answered."""

import gc
import random
import sys

import pyarrow as pa

from quail_spark.engine.config import EngineConfig
from quail_spark.engine.scripted import ScriptedEvaluator
from quail_spark.engine.stats import Stats
from quail_spark.engine.wire import Codec
from quail_spark.optimizer.plan import Argument, OperatorSpec, Predicate

ROWS, CAPACITY = 200, 1000  # of a batch; answers that are remembered
ASKS = ("{0} asks for a refund", "{0} is polite")
SPEC = OperatorSpec("op", "filter", tuple(Predicate(ask, (Argument(0),)) for ask in ASKS))


def test_nothing_is_kept_of_rows_but_the_answers_that_are_remembered(tmp_path):
    rng = random.Random()
    evaluator = ScriptedEvaluator(EngineConfig("scripted://hash?calls=false", answer_memory=CAPACITY))
    codec, stats = Codec(SPEC), Stats(tmp_path / "stats.json", {})

    def blocks_after(streams: int) -> int:
        """Python's objects after streams of five batches of new rows each."""
        for _ in range(streams):
            session = evaluator.open(SPEC)
            for _ in range(5):
                texts = [f"{rng.random()} and more" for _ in range(ROWS)]
                message = codec.encode(pa.record_batch({"text": texts}))
                answers = codec.answer(session, message.data, message.metadata)
                stats.add(SPEC, answers)
                codec.encode_answers(answers)
            session.close()
        stats.write()
        del session, texts, message, answers
        gc.collect()
        return sys.getallocatedblocks()

    full = blocks_after(streams=4)
    assert evaluator.describe()["remembered_answers"] == CAPACITY
    rows = 20 * 5 * ROWS
    assert blocks_after(streams=20) - full < rows / 20
