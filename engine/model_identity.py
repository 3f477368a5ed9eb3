"""A name for what answers depend on besides the prompt: the same on every machine, after every restart, for every copy."""

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from .models.facts import ModelFacts
from .readout import Readout

FORMAT = 1  # raise it when the forward pass changes answers beyond rounding
SAMPLES, SAMPLE_BYTES = 4, 4096  # of each tensor


def model_identity(
    directory: Path, facts: ModelFacts, dtype: object, fp8: str | None, readout: Readout, kv: str = "auto"
) -> str:
    """Hexadecimal, 128 bits: a hash of the checkpoint's facts, of number types, of the kind of FP8 scales and of KV
    (as set), of the answer tokens, and of every tensor's name, type, shape and a sample of its bytes.

    Reading gigabytes at each start would cost more than it tells: training changes a tensor everywhere, so 4 KiB from
    each quarter are looked at (smaller tensors whole). How tensors are divided over files, and where these lie, does
    not matter. The device does not either: its answers differ by rounding, like those of batches of another shape.
    """
    numbers = f"{str(dtype).removeprefix('torch.')} {fp8}{'' if kv == 'auto' else f' {kv} KV'}"
    stated = [FORMAT, asdict(facts), numbers, readout.ids, readout.trues]
    digest = blake2b(json.dumps(stated, sort_keys=True).encode(), digest_size=16)
    for tensor in sorted(t for path in directory.glob("*.safetensors") for t in _tensors(path)):
        digest.update(json.dumps([tensor.name, tensor.dtype, tensor.shape]).encode())
        for part in _samples(tensor):
            digest.update(part)
    return digest.hexdigest()


class _Tensor(NamedTuple):
    """Where a tensor's bytes stand."""

    name: str
    dtype: str
    shape: list[int]
    path: Path
    start: int
    size: int


def _tensors(path: Path) -> Iterator[_Tensor]:
    """A safetensors file: the length of its header in 8 bytes, the header (JSON), the tensors' bytes."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield _Tensor(name, entry["dtype"], entry["shape"], path, 8 + length + begin, end - begin)


def _samples(tensor: _Tensor) -> Iterator[bytes]:
    with tensor.path.open("rb") as file:
        if tensor.size <= SAMPLES * SAMPLE_BYTES:
            yield os.pread(file.fileno(), tensor.size, tensor.start)
            return
        for sample in range(SAMPLES):
            yield os.pread(file.fileno(), SAMPLE_BYTES, tensor.start + tensor.size * sample // SAMPLES)
