"""Where the Triton tests run: on the card, or without one in Triton's interpreter.

The interpreter must be chosen before triton is first imported, and other tests import it too: `test_triton.py` starts a
process for these files. In the main process they are skipped.
"""

import os

import pytest
import torch

ON_CARD = torch.cuda.is_available()
DEVICE = "cuda" if ON_CARD else "cpu"
# tl.dot on bfloat16 is wrong in the interpreter; float16 stands for it.
HALF = torch.bfloat16 if ON_CARD else torch.float16

if not ON_CARD and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device; test_triton.py runs these tests in the interpreter", allow_module_level=True)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    """‖got − want‖ / ‖want‖ in float64; NaN counts as infinite."""
    got, want = got.double().cpu(), want.double().cpu()
    value = ((got - want).norm() / want.norm().clamp_min(1e-30)).item()
    return value if value == value else float("inf")


def poisoned(*shape, dtype=HALF) -> torch.Tensor:
    """Memory full of NaN: what a kernel leaves unwritten shows."""
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def _loop_bounds_from_memory() -> None:
    """Triton 3.6's interpreter makes a loop bound of an array of one element, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_lang_tensor


if not ON_CARD:
    _loop_bounds_from_memory()
