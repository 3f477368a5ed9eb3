"""Scaled products that add to what is there, onto += x Wᵀ, in one kernel on Hopper.

cuBLASLt computes D = A · B + C, but torch's scaled products leave C out. This calls the library that torch brings along, through
ctypes. Numbers and signatures are those of NVIDIA's cublasLt.h (CUDA 13); matrices are by columns there, so D is `onto`
transposed, A the weight and B the activations.
"""

import ctypes
from ctypes import byref, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache

import torch

from .fp8 import Quantised
from .launching import current, on_hopper

E4M3, BFLOAT16, FLOAT32, COMPUTE_FLOAT32 = 28, 14, 0, 68
TRANSPOSE_A, SCALES_A, SCALES_B, FAST_SUMS, MODE_A, MODE_B = 3, 17, 18, 25, 31, 32  # of a product
COLUMNS = 3  # of a layout
MOST_WORKSPACE = 1  # of a preference
MODES = {"row": (3, 3, 1), "block": (5, 4, 0)}  # scales of the weight, of the activations; fast sums
LEAST_VERSION = 120900  # of the library: has these modes
WORKSPACE = 4 << 20  # bytes
ALIGNED = 256  # bytes: what the library takes for granted when it chooses an algorithm


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _Choice(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class AddingProduct:
    """One weight's product. Serves one thread at a time. Its descriptions, a kilobyte, live as long as the process."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor, kind: str):
        """`weight` e4m3 [out, in] and `scales` as `ScaledLinear` keeps them, by `kind`."""
        self._weight, self._scales = weight, scales
        self._shape = (kind, weight.device, *weight.shape)
        (out, into), (of_weight, of_rows, fast) = weight.shape, MODES[kind]
        self._product = _made("cublasLtMatmulDescCreate", COMPUTE_FLOAT32, FLOAT32)
        for name, value in (
            (TRANSPOSE_A, c_int32(1)),
            (FAST_SUMS, c_int8(fast)),
            (MODE_A, c_int32(of_weight)),
            (MODE_B, c_int32(of_rows)),
            (SCALES_A, c_void_p(scales.data_ptr())),
        ):
            _set("cublasLtMatmulDescSetAttribute", self._product, name, value)
        self._a = _made("cublasLtMatrixLayoutCreate", E4M3, c_uint64(into), c_uint64(out), c_int64(into))
        self._b = _made("cublasLtMatrixLayoutCreate", E4M3, c_uint64(into), c_uint64(1), c_int64(into))
        self._d = _made("cublasLtMatrixLayoutCreate", BFLOAT16, c_uint64(out), c_uint64(1), c_int64(out))
        self._rows = 1

    @staticmethod
    def serves(device: torch.device) -> bool:
        """Whether the card and torch's library have such products."""
        return on_hopper(device) and _library() is not None

    def add(self, x: Quantised, onto: torch.Tensor) -> bool:
        """onto += x Wᵀ, `onto` bfloat16 [rows, out], contiguous.

        False when the library has no product for this; nothing is done then.
        """
        pointers = [t.data_ptr() for t in (self._weight, x.values, onto)]
        if any(pointer % ALIGNED for pointer in pointers):
            return False
        _set("cublasLtMatmulDescSetAttribute", self._product, SCALES_B, c_void_p(x.scales.data_ptr()))
        if len(onto) != self._rows:
            self._rows = len(onto)
            for layout in (self._b, self._d):
                _set("cublasLtMatrixLayoutSetAttribute", layout, COLUMNS, c_uint64(self._rows))
        choice = self._choice()
        if choice is None:
            return False
        workspace = torch.empty(choice.workspace, dtype=torch.uint8, device=onto.device)
        one, weight, rows, target = c_float(1), *map(c_void_p, pointers)
        _check(
            _library().cublasLtMatmul(
                _handle(onto.device), self._product, byref(one), weight, self._a, rows, self._b, byref(one), target,
                self._d, target, self._d, byref(choice.algorithm), c_void_p(workspace.data_ptr()),
                c_size_t(choice.workspace), c_void_p(torch.cuda.current_stream(onto.device).cuda_stream),
            )
        )  # fmt: skip
        return True

    def _choice(self) -> _Choice | None:
        """The library's algorithm for this many rows. Layers of one shape share it."""
        key = (*self._shape, self._rows)
        try:
            return _chosen[key]
        except KeyError:
            if len(_chosen) >= MOST_CHOSEN:
                _chosen.clear()
            result, found = _Choice(), c_int()
            _library().cublasLtMatmulAlgoGetHeuristic(
                _handle(self._weight.device), self._product, self._a, self._b, self._d, self._d, _preference(),
                c_int(1), byref(result), byref(found),
            )  # fmt: skip
            choice = _chosen[key] = result if found.value else None
            return choice


_chosen: dict[tuple, _Choice | None] = {}
MOST_CHOSEN = 4096


@cache
def _library() -> ctypes.CDLL | None:
    if torch.version.cuda is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    except OSError:
        return None
    library.cublasLtGetVersion.restype = c_size_t
    return library if library.cublasLtGetVersion() >= LEAST_VERSION else None


@cache
def _handle(device: torch.device) -> c_void_p:
    with current(device):
        return _made("cublasLtCreate")


@cache
def _preference() -> c_void_p:
    preference = _made("cublasLtMatmulPreferenceCreate")
    _set("cublasLtMatmulPreferenceSetAttribute", preference, MOST_WORKSPACE, c_uint64(WORKSPACE))
    return preference


def _made(constructor: str, *arguments) -> c_void_p:
    made = c_void_p()
    _check(getattr(_library(), constructor)(byref(made), *arguments))
    return made


def _set(function: str, of: c_void_p, name: int, value) -> None:
    _check(getattr(_library(), function)(of, name, byref(value), c_size_t(ctypes.sizeof(value))))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt returns status {status}")
