"""From settings to an evaluator."""

from .answer_files import check_location
from .config import EngineConfig
from .evaluator import Evaluator
from .scripted import SCHEME, ScriptedEvaluator


def make_evaluator(config: EngineConfig) -> Evaluator:
    """Load the model (seconds to minutes). Raises ModelError when it can't be used, ConfigError for a bad setting."""
    if config.answer_store:
        check_location(config.answer_store)
    if config.model.startswith(SCHEME):
        return ScriptedEvaluator(config)
    from .model_evaluator import ModelEvaluator  # torch and transformers only where there is a model

    return ModelEvaluator.load(config)
