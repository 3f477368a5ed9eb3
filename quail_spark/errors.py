"""The exceptions a caller may catch."""

from quail_spark.optimizer.errors import (
    ConfigError,
    EngineCrashError,
    EngineError,
    EngineStartError,
    ModelError,
    OutOfMemoryError,
    OutOfPagesError,
    PromptError,
    QuailError,
    RowError,
    SetupError,
    SqlError,
)

__all__ = [
    "ConfigError",
    "EngineCrashError",
    "EngineError",
    "EngineStartError",
    "ModelError",
    "OutOfMemoryError",
    "OutOfPagesError",
    "PromptError",
    "QuailError",
    "RowError",
    "SetupError",
    "SqlError",
]
