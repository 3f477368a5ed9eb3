"""GGUF files, converted once into a directory of safetensors that is kept in the cache."""

import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from quail_spark.optimizer.errors import ModelError

FORMAT = 1  # raise it when a conversion writes something else for the same file


def cache_dir() -> Path:
    """Where converted models are kept: `$QUAIL_SPARK_CACHE`, else `~/.cache/quail-spark`. Not created here."""
    return Path(os.environ.get("QUAIL_SPARK_CACHE") or Path.home() / ".cache" / "quail-spark").expanduser()


def convert_gguf(path: Path) -> Path:
    """The directory (bfloat16 safetensors, configuration, tokenizer) for a GGUF file; converts it when it is not cached.

    Safe under concurrent callers: one converts, the others wait. Raises ModelError when transformers can't read it.
    """
    target = cache_dir() / "converted" / _key(path)
    if _complete(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(".lock")):
        if _complete(target):
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _convert(path, scratch)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(scratch, target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return target


def _complete(target: Path) -> bool:
    return (target / "config.json").is_file() and any(target.glob("*.safetensors"))


def _key(path: Path) -> str:
    """Name, size, time and place of the file: hashing gigabytes at each start would cost more than it tells."""
    import hashlib

    path = path.resolve()
    stat = path.stat()
    text = json.dumps([str(path), stat.st_size, stat.st_mtime_ns, FORMAT])
    return f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@contextmanager
def _lock(path: Path):
    """An exclusive lock between processes and threads, given back by the system when the process dies."""
    import fcntl

    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert(path: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    started = time.monotonic()
    print(f"quail-spark: converting {path.name} to safetensors (once) …", file=sys.stderr, flush=True)
    try:
        folder, name = str(path.parent), path.name
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16, trust_remote_code=False
        )
    except Exception as error:
        raise ModelError(f"{path} can't be read as a GGUF model: {type(error).__name__}: {error}") from error
    # save_pretrained would run the GGUF quantiser's own saving, which refuses.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"quail-spark: converted in {time.monotonic() - started:.0f} s to {out.parent}", file=sys.stderr, flush=True)
