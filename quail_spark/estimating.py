"""What an AI operator will take, for EXPLAIN: which model runs on which device, as far as the driver can tell. Torch-free."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path

from quail_spark.engine.devices import address_of, visible_gpus
from quail_spark.optimizer.anchor import SideSize
from quail_spark.optimizer.context import PlanContext
from quail_spark.optimizer.device import DeviceSpec, find_device
from quail_spark.optimizer.errors import ModelError
from quail_spark.optimizer.estimate import OperatorEstimate
from quail_spark.optimizer.explain import operator_line
from quail_spark.optimizer.model_spec import ModelSpec, known_model
from quail_spark.optimizer.operators import estimate_operator, guesses
from quail_spark.optimizer.plan import OperatorSpec
from quail_spark.optimizer.roofline import Roofline
from quail_spark.optimizer.statistics import UNKNOWN_BYTES

from .conf import QuailConf
from .engines import resolve_device, resolve_model

WORK_OF = {"existence": "semi", "single": "left"}  # the kinds of joins that take the same work
STAND_IN = ("qwen3-4b", "H200")
GPU_FACTS = "/proc/driver/nvidia/gpus/*/information"


def estimate_lines(*operator, **known) -> list[str]:
    """A line with `estimated`, which has the same arguments; none where there is no estimate."""
    found = estimated(*operator, **known)
    if found is None:
        return []
    guessed = guesses(found[0])
    return [operator_line(*found) + (f"; guessed: {', '.join(guessed)}" if guessed else "")]


def estimated(
    spec: OperatorSpec,
    inputs: Sequence[SideSize],
    conf: QuailConf,
    kind: str = "inner",
    keyed: bool = False,
    earlier: Sequence[tuple[int, int]] = (),
) -> tuple[OperatorEstimate, PlanContext] | None:
    """What an operator will take, and of which model on which device; None where model, device, or both rows and bytes of an input are unknown.

    `kind` of a join as its operator has it, `keyed`: under an equality, of which the larger side is taken to have each key
    once. Other arguments as in `estimate_operator`.
    """
    context = plan_context(conf)
    unknown = any(size.rows is None and (size.total_bytes or UNKNOWN_BYTES) >= UNKNOWN_BYTES for size in inputs)
    if context is None or unknown or not all(predicate.used for predicate in spec.predicates):
        return None
    rows = [size.rows for size in inputs if size.rows is not None]
    pairs = min(rows) if keyed and len(rows) == 2 else None
    if keyed and pairs is None:
        return None
    return estimate_operator(spec, inputs, context, WORK_OF.get(kind, kind), pairs, earlier), context


def plan_context(conf: QuailConf, stand_in: bool = False) -> PlanContext | None:
    """Model, device and price of a session. Where one of them is not known to planning: None, or with `stand_in` the shape of
    `STAND_IN`, which tells the cheaper order as well.
    """
    model, device = model_spec(conf["model"]), device_spec(conf["estimate.device"] or conf["device"])
    if stand_in:
        model, device = model or known_model(STAND_IN[0]), device or find_device(STAND_IN[1])
    if model is None or device is None:
        return None
    eight_bits = device.fp8_flops is not None and conf["engine.fp8"] != "off"
    eight_bits = eight_bits and (conf["engine.fp8"] != "auto" or is_fp8(conf["model"]))
    kv = "fp8" if conf["engine.kv"] == "fp8" else "bfloat16"
    roofline = Roofline(model, device, "fp8" if eight_bits else "bfloat16", kv)
    return PlanContext(roofline, conf["prompt.layout"], price=conf["estimate.pricePerHour"] or None)


def model_spec(setting: str) -> ModelSpec | None:
    """The shapes of `spark.quail.model`: of its configuration where it is a directory here, else by its name."""
    config = _config(setting)
    if config:
        try:
            return ModelSpec.from_config(config, Path(_resolved(setting)).name)
        except ModelError:
            return None
    return known_model(_resolved(setting))


def is_fp8(setting: str) -> bool:
    """Whether a checkpoint's weights are FP8, by its configuration or name."""
    method = _config(setting).get("quantization_config", {}).get("quant_method")
    return method == "fp8" or bool(re.search(r"\bfp8\b", _resolved(setting).lower()))


def device_spec(setting: str, environment: Mapping[str, str] = os.environ) -> DeviceSpec | None:
    """The device of `spark.quail.device` on this machine, or the one that a name such as `H100` means.

    `cuda:N` counts the GPUs that CUDA_VISIBLE_DEVICES shows."""
    resolved = resolve_device(setting, environment=environment)
    if re.fullmatch(r"cuda:\d+", resolved):
        shown = visible_gpus(environment)
        if shown is not None and int(resolved.removeprefix("cuda:")) >= len(shown):
            return None
        name = gpu_name(address_of(resolved, environment).removeprefix("cuda:"), gpus())
        return find_device(name) if name else None
    return find_device(resolved, os.cpu_count() or 1)


def gpu_name(address: str, known: Sequence[tuple[str, str]]) -> str | None:
    """The name of the GPU with this index or (beginning of a) UUID among `known` names and UUIDs; None for any other, such
    as a MIG slice, which is less than its GPU."""
    if address.isdigit():
        return known[int(address)][0] if int(address) < len(known) else None
    found = [name for name, uuid in known if address.startswith("GPU-") and uuid.startswith(address)]
    return found[0] if len(found) == 1 else None


def gpus(pattern: str = GPU_FACTS) -> list[tuple[str, str]]:
    """Names and UUIDs of this machine's GPUs as the driver's files tell them, in the order of their buses."""
    texts = [Path(path).read_text(encoding="utf-8", errors="replace") for path in sorted(glob(pattern))]
    return [(_fact("Model", text), _fact("GPU UUID", text)) for text in texts]


def _fact(name: str, text: str) -> str:
    found = re.search(rf"^{name}:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _resolved(setting: str) -> str:
    try:
        return resolve_model(setting)
    except ModelError:
        return ""


def _config(setting: str) -> dict:
    """The object of the directory's `config.json`; empty where there is none."""
    path = Path(os.path.expanduser(_resolved(setting) or "?")) / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
