"""GGUF files, converted once into a directory of safetensors that is kept in the cache."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from quail_spark.optimizer.errors import ModelError

from .cache import cache_dir, locked

FORMAT = 1  # raise it when a conversion writes something else for the same file
_PARSING = threading.Lock()


def convert_gguf(path: Path) -> Path:
    """The directory (bfloat16 safetensors, configuration, tokenizer) for a GGUF file; converts it when it is not cached.

    Safe under concurrent callers: one converts, the others wait. A conversion that fails leaves nothing behind.
    Raises ModelError when transformers can't read the file.
    """
    target = cache_dir() / "converted" / cache_key(path)
    if is_converted(target):
        return target
    with locked(target.with_name(target.name + ".lock")):
        if is_converted(target):
            return target
        for abandoned in target.parent.glob(f".{target.name}-*"):  # by a process that was killed
            shutil.rmtree(abandoned, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _convert(path, scratch)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(scratch, target)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return target


def is_converted(target: Path) -> bool:
    """Directories appear whole (by rename), so looking for the two main files is enough."""
    return (target / "config.json").is_file() and any(target.glob("*.safetensors"))


def cache_key(path: Path) -> str:
    """From place, size and time of the file: hashing gigabytes at each start would cost more than it tells."""
    path = path.resolve()
    stat = path.stat()
    text = json.dumps([str(path), stat.st_size, stat.st_mtime_ns, FORMAT])
    return f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _convert(path: Path, out: Path) -> None:
    started = time.monotonic()
    print(f"quail-spark: converting {path.name} to safetensors (once) …", file=sys.stderr, flush=True)
    try:
        model, tokenizer = _read(path)
    except Exception as error:
        raise ModelError(f"{path} can't be read as a GGUF model: {type(error).__name__}: {error}") from error
    # save_pretrained would run the GGUF quantiser's own saving, which refuses.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    out.chmod(0o755)
    print(f"quail-spark: converted in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _read(path: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    where = {"gguf_file": path.name, "trust_remote_code": False, "local_files_only": True}
    logging.disable_progress_bar()
    try:
        with _parsed_once():
            tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **where)
            return AutoModelForCausalLM.from_pretrained(str(path.parent), dtype=torch.bfloat16, **where), tokenizer
    finally:
        logging.enable_progress_bar()


@contextmanager
def _parsed_once() -> Iterator[None]:
    """transformers opens the file four times, and parsing a vocabulary of 150,000 takes seconds each time."""
    import gguf

    with _PARSING:
        reader = gguf.GGUFReader
        gguf.GGUFReader = cache(reader)
        try:
            yield
        finally:
            gguf.GGUFReader = reader
