"""Host arrays to a device in one copy."""

from collections.abc import Sequence

import numpy as np
import torch


def send(parts: Sequence[np.ndarray], device: torch.device | str) -> tuple[torch.Tensor, ...]:
    """One-dimensional arrays of one dtype as tensors on `device`, in order. To a GPU the copy runs behind the caller."""
    packed = torch.from_numpy(np.concatenate(parts))
    if torch.device(device).type == "cuda":
        packed = packed.pin_memory()
    return packed.to(device, non_blocking=True).split([len(part) for part in parts])
