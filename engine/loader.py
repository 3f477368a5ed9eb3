"""From the name of a model to a loaded one."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from quail_spark.kernels.launching import current
from quail_spark.kernels.scaled_linear import scaled_kinds
from quail_spark.optimizer.errors import ConfigError, ModelError

from .checkpoint import load_decoder
from .models.decoder import Decoder

if TYPE_CHECKING:
    from .models.cuda_decoder import CudaDecoder

LEAST_CAPABILITY = (8, 0)  # bfloat16 products
HUB_FILES = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model")


def load_model(
    path_or_id: str, *, device: str | torch.device = "cpu", dtype: str | torch.dtype = "auto", fp8: str = "auto"
) -> "Decoder | CudaDecoder":
    """Load a directory, a GGUF file or a hub id. `dtype`: `auto`, `float32`, `bfloat16`, `float16`; `fp8` as in EngineConfig.

    Raises ModelError, or ConfigError for a setting that the device can't serve.
    """
    device = torch.device(device)
    if device.type == "cuda":
        _check_device(device)
    dtype = resolve_dtype(dtype, device)
    kind = resolve_fp8(fp8, dtype, device)
    path = resolve_checkpoint(str(path_or_id))
    with current(device):
        return load_decoder(path, device, dtype, kind)


def resolve_fp8(fp8: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """`auto` where the device multiplies FP8, else None; what was asked for, or ConfigError when the device can't."""
    kinds = scaled_kinds(device) if dtype == torch.bfloat16 else ()
    if fp8 in ("auto", "off"):
        return fp8 if kinds and fp8 == "auto" else None
    if fp8 not in kinds:
        raise ConfigError(
            f"spark.quail.engine.fp8 is {fp8!r}; accepted on {device} with {str(dtype).removeprefix('torch.')}: "
            f"{', '.join(('auto', *kinds, 'off'))}"
        )
    return fp8


def _check_device(device: torch.device) -> None:
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(f"spark.quail.device is {str(device)!r}; this machine has {count} CUDA devices")
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise ConfigError(
            f"spark.quail.device is {str(device)!r}, a {torch.cuda.get_device_name(device)} of compute capability "
            f"{'.'.join(map(str, capability))}; accepted: {'.'.join(map(str, LEAST_CAPABILITY))} and newer"
        )


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
