"""Launching Triton kernels past Triton's own look-up, which takes the host some 50 µs of a launch."""

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch

_compiled: dict[Hashable, object] = {}


def launch(kernel, grid: tuple[int, ...], *arguments, num_warps: int, **constants) -> None:
    """`kernel[grid](*arguments, **constants, num_warps=num_warps)` on the current device and stream.

    `constants` are all of the kernel's constexpr parameters, which come last in its signature. Compiled variants are kept by
    what Triton specialises on: types, and of numbers and addresses whether 16 divides them.
    """
    names = _constants_of(kernel)
    if names is None:
        kernel[grid](*arguments, **constants, num_warps=num_warps)
        return
    ordered = [constants[name] for name in names]
    key = (kernel, torch.cuda.current_device(), num_warps, *ordered, *map(_trait, arguments))
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[grid](*arguments, **constants, num_warps=num_warps)
    else:
        compiled[(*grid, 1, 1)](*arguments, *ordered)


def current(device: torch.device) -> AbstractContextManager:
    """`device` as the thread's current one, also where nothing is launched.

    CUDA's libraries make a context of half a GiB on the current device, whichever that is.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def on_hopper(device: torch.device | str) -> bool:
    """Whether kernels in Gluon for Hopper run on `device`."""
    return torch.device(device).type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def programs(device: torch.device | str) -> int:
    """Of a kernel that works off tiles: one for each multiprocessor, whose memory holds no second one."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _constants_of(kernel) -> tuple[str, ...] | None:
    """In the order of the signature; None in Triton's interpreter, which compiles nothing."""
    if not hasattr(kernel, "device_caches"):
        return None
    names = tuple(p.name for p in kernel.params if p.is_constexpr)
    assert names == tuple(p.name for p in kernel.params[-len(names) :])
    return names


def _trait(argument) -> Hashable:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return 1 if argument == 1 else (argument % 16 == 0, argument.bit_length() > 31)
    if isinstance(argument, float):
        return float
    return argument.base.dtype, *argument.block_shape  # a descriptor for the tensor copy engine
