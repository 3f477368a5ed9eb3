"""Where fetched and converted models are kept. Needs neither torch nor transformers."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """`$QUAIL_SPARK_CACHE`, else `quail-spark` below `$XDG_CACHE_HOME` or `~/.cache`. Not created here."""
    if given := os.environ.get("QUAIL_SPARK_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "quail-spark"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes and threads; the system gives it back when the process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
