"""What `quail-spark doctor` looks at: everything a query needs on this machine, and how to get what is missing."""

import importlib
import os
import platform
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from quail_spark.engine.cache import cache_dir
from quail_spark.engine.memory_plan import CPU_KV_BYTES
from quail_spark.engine.runtime_dir import root
from quail_spark.optimizer.errors import ModelError

from . import java_home
from .conf import QuailConf

HERE, MISSING, NOTE = "ok", "MISSING", "note"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, what was found, and the command that mends it. A `note` is not needed to run."""

    name: str
    state: str
    found: str
    fix: str = ""

    @property
    def missing(self) -> bool:
        """Whether a query can't run like this."""
        return self.state == MISSING


def examine() -> list[Check]:
    """Look at everything, in the order in which one would mend it. Never raises."""
    return [check for look in LOOKS for check in _guarded(look)]


def report(checks: list[Check]) -> str:
    """The checks as lines of text, and what they come to."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:>7}  {check.name:<{width}}  {check.found}")
        if check.fix:
            lines.append(f"{'':>7}  {'':<{width}}  → {check.fix}")
    missing = [check.name for check in checks if check.missing]
    lines.append("")
    lines.append(f"Missing: {', '.join(missing)}" if missing else "All that a query needs is here.")
    return "\n".join(lines)


def _guarded(look: Callable[[], Iterator[Check]]) -> list[Check]:
    try:
        return list(look())
    except Exception as error:  # a broken library may raise anything on import
        name = look.__name__.strip("_").replace("_", " ")
        return [Check(name, MISSING, f"looking failed: {type(error).__name__}: {error}")]


def _python() -> Iterator[Check]:
    state = HERE if sys.version_info >= (3, 11) else MISSING
    fix = "" if state == HERE else "install Python 3.11 or newer"
    yield Check("Python", state, f"{platform.python_version()} ({sys.executable})", fix)


def _java() -> Iterator[Check]:
    home = java_home.spark_would_use()
    version = java_home.version_of(home) if home else None
    if version in java_home.ACCEPTED:
        yield Check("Java", HERE, f"{version} ({home})")
        return
    found = f"{version} ({home}); accepted: 17, 21" if version else "none"
    other = java_home.find_java()
    yield Check("Java", MISSING, found, f"export JAVA_HOME={other}" if other else java_home.INSTALL)


def _packages() -> Iterator[Check]:
    """Every dependency that the package declares, with the versions it accepts."""
    from packaging.requirements import Requirement

    for text in metadata.requires("quail-spark") or []:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        fix = f"{sys.executable} -m pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield Check(requirement.name, MISSING, "not installed", fix)
            continue
        if requirement.specifier.contains(version, prereleases=True):
            yield Check(requirement.name, HERE, version)
        else:
            yield Check(requirement.name, MISSING, f"{version}; accepted: {requirement.specifier}", fix)


def _torch() -> Iterator[Check]:
    torch = importlib.import_module("torch")
    cuda = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU only"
    yield Check("PyTorch loads", HERE, f"{cuda}; {torch.get_num_threads()} CPU threads")
    bf16 = _cpu_flags() & {"amx_bf16", "avx512_bf16", "bf16"}
    found = f"yes ({', '.join(sorted(bf16))})" if bf16 else "no: the engine is slower on this CPU"
    yield Check("bfloat16 on the CPU", HERE if bf16 else NOTE, found)
    if not torch.cuda.is_available():
        yield Check("GPU", NOTE, "none: the engine runs on the CPU")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        yield Check(f"GPU {index}", HERE, f"{name}, {total / 1e9:.0f} GB, {free / 1e9:.0f} GB free")


def _default_model() -> Iterator[Check]:
    from .models import default_model

    try:
        model = default_model()
    except ModelError:
        found = f"not in {cache_dir()}, and $QUAIL_SPARK_MODEL is not set"
        yield Check("default model", MISSING, found, "quail-spark fetch-model")
        return
    weights = sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    if not weights:
        yield Check("default model", NOTE, f"{model}: looked for when a query runs")
        return
    size = sum(file.stat().st_size for file in weights)
    yield Check("default model", HERE, f"{model}, {size / 1e9:.2f} GB, {_dtypes(weights[0])}")
    yield _memory(size)


def _memory(model_bytes: int) -> Check:
    """The engine holds the weights once, the KV pages, and what a forward pass works with."""
    kv = QuailConf()["engine.kvMemory"] or CPU_KV_BYTES
    needed = model_bytes + kv + (1 << 30)
    free = _available_memory()
    if free is None:
        return Check("memory", NOTE, f"unknown; the engine needs about {needed / 1e9:.1f} GB")
    found = f"{free / 1e9:.1f} GB free; the engine needs about {needed / 1e9:.1f} GB (KV pages {kv / 1e9:.1f})"
    enough = free >= needed
    return Check("memory", HERE if enough else MISSING, found, "" if enough else "lower spark.quail.engine.kvMemory")


def _cache() -> Iterator[Check]:
    directory = cache_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            yield Check("model cache", HERE, f"{directory} can be written")
    except OSError as error:
        fix = "export QUAIL_SPARK_CACHE=a directory that you may write"
        yield Check("model cache", MISSING, f"{directory}: {error.strerror}", fix)


def _sockets() -> Iterator[Check]:
    """The engine serves on a Unix socket in a private directory below the temporary one."""
    directory = root().parent
    try:
        with tempfile.TemporaryDirectory(prefix="quail-spark-doctor-", dir=directory) as private:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.join(private, "engine.sock"))
            yield Check("engine sockets", HERE, f"can be made in {directory}")
    except OSError as error:
        fix = "export TMPDIR=a short path that you may write, such as /tmp"
        yield Check("engine sockets", MISSING, f"can't be made in {directory}: {error}", fix)


LOOKS = (_python, _java, _packages, _torch, _default_model, _cache, _sockets)


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(match[1].split()) if match else set()


def _available_memory() -> int | None:
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _dtypes(weights: Path) -> str:
    from safetensors import safe_open

    with safe_open(weights, framework="numpy") as file:
        return ", ".join(sorted({file.get_slice(name).get_dtype() for name in file.keys()}))  # noqa: SIM118
