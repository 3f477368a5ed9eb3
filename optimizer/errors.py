"""Every exception this package raises on purpose. They live here because all layers may import this one."""


class QuailError(Exception):
    """Root of the tree. A message says what was got, what is accepted, and where."""


class ConfigError(QuailError):
    """A setting or option has a wrong name or value."""


class PromptError(QuailError):
    """A template or its arguments do not fit: missing placeholder argument, unknown column, bad brace."""


class SqlError(QuailError):
    """An AI call in SQL text is written in a form that is not accepted."""


class ModelError(QuailError):
    """A model can't be found, is of an unsupported kind, or has no usable TRUE/FALSE tokens."""


class RowError(QuailError):
    """A row can't be answered (a prompt longer than the context, say) and `spark.quail.onError` is `fail`."""


class EngineError(QuailError):
    """The engine process failed. The message carries the end of its log."""


class OutOfPagesError(EngineError):
    """KV that must be kept needs more pages than are free. The message carries both numbers."""


class OutOfMemoryError(EngineError):
    """A forward pass finds no memory, however small it is made. The message carries the allocator's words."""


class EngineStartError(EngineError):
    """The engine process did not come up."""


class EngineCrashError(EngineError):
    """The engine process died while it worked, more often than is retried."""


class SetupError(QuailError):
    """Something the machine must have is missing (Java, say). The message says which command installs it."""
