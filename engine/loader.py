"""From the name of a model to a loaded one."""

from pathlib import Path

import torch

from quail_spark.optimizer.errors import ConfigError, ModelError

from .checkpoint import load_decoder
from .models.decoder import Decoder

HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model")


def load_model(path_or_id: str, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "auto") -> Decoder:
    """Load a directory, a GGUF file or a hub id. `dtype`: `auto`, `float32`, `bfloat16`, `float16`. Raises ModelError."""
    device = torch.device(device)
    if device.type != "cpu":
        raise ConfigError(f"spark.quail.device is {str(device)!r}; accepted by this version's kernels: cpu")
    return load_decoder(resolve_checkpoint(str(path_or_id)), device, resolve_dtype(dtype, device))


def resolve_checkpoint(model: str) -> Path:
    """A directory of safetensors, configuration and tokenizer: a local one as it is; a GGUF file converted once; a hub
    id by download (weights, JSON and tokenizer files only, no code). Raises ModelError when there is none."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix.lower() == ".gguf":
        from .gguf import convert_gguf

        if not path.is_file():
            raise ModelError(f"the GGUF file {model!r} does not exist")
        return convert_gguf(path)
    if path.exists():
        raise ModelError(
            f"{model!r} is a file; accepted: a directory of safetensors, a GGUF file (*.gguf), or a hub id"
        )
    if model.count("/") > 1 or model.startswith((".", "/", "~")):
        raise ModelError(f"the directory {model!r} does not exist")
    return _hub_snapshot(model)


def _hub_snapshot(model: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(HUB_FILES)))
    except Exception as error:
        raise ModelError(
            f"the model {model!r} is neither a local path nor could it be fetched from the hub "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'})"
        ) from error


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the hardware multiplies it (CPU: AMX or AVX-512 BF16), else float32."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type != "cpu" or _cpu_has_bfloat16() else torch.float32
    if dtype not in ("float32", "bfloat16", "float16"):
        raise ConfigError(f"spark.quail.dtype is {dtype!r}; accepted: auto, float32, bfloat16, float16")
    return getattr(torch, dtype)


def _cpu_has_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and (
        torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    )
