"""Which GPU is which: what a cluster manager calls it, and CUDA in this process. Torch-free."""

import os
from collections.abc import Mapping
from glob import glob
from itertools import takewhile

from quail_spark.optimizer.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The entries of $CUDA_VISIBLE_DEVICES (indices, or names such as GPU-… and MIG-…); None where it is not set.

    Like CUDA it ignores what stands behind an entry that is no device: `-1`, nothing, or Slurm's `NoDevFiles`.
    """
    if (text := environment.get(VISIBLE)) is None:
        return None
    entries = (entry.strip() for entry in text.split(","))
    return list(takewhile(lambda entry: entry and not entry.startswith("-") and entry != "NoDevFiles", entries))


def count_gpus(environment: Mapping[str, str] = os.environ) -> int:
    """How many GPUs CUDA shows to this process."""
    visible = visible_gpus(environment)
    return len(glob("/dev/nvidia[0-9]*")) if visible is None else len(visible)


def device_of(address: str, environment: Mapping[str, str] = os.environ) -> str:
    """`cuda:N` for the address of a GPU as Spark knows it from a discovery script.

    An address is an entry of $CUDA_VISIBLE_DEVICES where that is set, or the place of one; else an index. Raises
    ConfigError for any other.
    """
    visible = visible_gpus(environment)
    if visible is not None and address in visible:
        return f"cuda:{visible.index(address)}"
    if address.isdigit() and (visible is None or int(address) < len(visible)):
        return f"cuda:{int(address)}"
    shown = "is not set" if visible is None else f"is {environment[VISIBLE]!r}"
    raise ConfigError(
        f"Spark gave this task the GPU {address!r}, and {VISIBLE} {shown}; accepted: an entry of {VISIBLE} or its place "
        "there, or an index where it is not set. `quail-spark gpu-script` names a discovery script that fits"
    )


def address_of(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """One name for a device in all processes of a machine, whatever each of them is shown: `cpu`, `cuda:3`, `cuda:GPU-…`."""
    visible = visible_gpus(environment)
    if visible is None or not device.startswith("cuda:"):
        return device
    index = int(device.removeprefix("cuda:"))
    return f"cuda:{visible[index]}" if index < len(visible) else device
