"""Ask a language model questions about tables in Spark SQL."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Name -> the module that has it, imported when it is used. No module may bear such a name: its import would replace the function.
_EXPORTS = {
    "enable": "session",
    "disable": "session",
    "explain": "explaining",
    "report": "reporting",
    "metrics": "prometheus",
}
_MODULES = ("functions",)

__all__ = [*_EXPORTS, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _EXPORTS:
        return getattr(import_module(f".{_EXPORTS[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
