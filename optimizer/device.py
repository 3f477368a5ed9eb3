"""What a device can do: datasheet peaks, and the share of them that was measured in forward passes."""

from dataclasses import dataclass, replace

from .errors import ConfigError


@dataclass(frozen=True)
class Efficiency:
    """Measured rate / peak: `linear` with all element-wise work in it, attention of a text with itself (`own`) and of
    questions or partners with kept KV (`kept`), and memory `traffic`."""

    linear: float = 1.0
    own: float = 1.0
    kept: float = 1.0
    traffic: float = 1.0


@dataclass(frozen=True)
class DeviceSpec:
    """`bf16_flops` and `fp8_flops`: dense FLOP/s (None: no FP8). `bandwidth`: bytes/s of its memory. `memory`: bytes.

    `assumed`: the efficiency was not measured on this device.
    """

    name: str
    bf16_flops: float
    fp8_flops: float | None
    bandwidth: float
    memory: float
    efficiency: Efficiency = Efficiency()
    assumed: bool = False

    def linear_flops(self, precision: str) -> float:
        """Peak FLOP/s of matrix products. `auto`: FP8 where the device has it. Raises ConfigError for another name."""
        if precision not in ("auto", "fp8", "bfloat16"):
            raise ConfigError(f"precision of the linear layers is {precision!r}; accepted: auto, fp8, bfloat16")
        if precision == "fp8" and self.fp8_flops is None:
            raise ConfigError(f"precision of the linear layers is 'fp8', which {self.name} lacks; accepted: bfloat16")
        return self.bf16_flops if precision == "bfloat16" or self.fp8_flops is None else self.fp8_flops

    def at_peak(self) -> "DeviceSpec":
        """The same device at its datasheet peaks: the speed of light."""
        return replace(self, efficiency=Efficiency(), assumed=False)


# From the kernels' notes (docs/gpu-notes.md) on an H200 and the 4B shape: products 1,270 of 1,979 TFLOPS, with norms, rotary,
# SwiGLU and quantisation 58 %; attention 226 TFLOPS over documents of 390 tokens, 509 behind a long shared prefix; copy 4.22 TB/s.
HOPPER = Efficiency(linear=0.58, own=0.23, kept=0.51, traffic=0.88)

# Datasheets of NVIDIA, dense rates (half of those "with sparsity"), SXM form where there are several.
DEVICES = (
    DeviceSpec("H200", 989e12, 1979e12, 4.8e12, 141e9, HOPPER),
    DeviceSpec("H100", 989e12, 1979e12, 3.35e12, 80e9, HOPPER, assumed=True),
    DeviceSpec("A100", 312e12, None, 2.039e12, 80e9, HOPPER, assumed=True),
    DeviceSpec("L4", 121e12, 242e12, 0.3e12, 24e9, HOPPER, assumed=True),
)

# A core at 2 GHz with AMX: 1,024 bfloat16 FLOPs a cycle. 900 tokens/s on two of them with Qwen2.5-0.5B (0.716 GFLOP a token)
# are 16 % of that; the shares of attention and memory, and the bandwidth, are assumed.
CORE_FLOPS, CORE_BANDWIDTH = 2.05e12, 10e9
CPU_EFFICIENCY = Efficiency(linear=0.16, own=0.05, kept=0.05, traffic=0.5)


def cpu(cores: int, memory: float = 16e9) -> DeviceSpec:
    """A CPU with this many cores."""
    if cores < 1:
        raise ConfigError(f"number of cores is {cores}; accepted: 1 or more")
    return DeviceSpec(
        f"CPU, {cores} cores", CORE_FLOPS * cores, None, CORE_BANDWIDTH * cores, memory, CPU_EFFICIENCY, assumed=True
    )


def find_device(name: str, cores: int = 1) -> DeviceSpec | None:
    """The device that torch calls `name` (`NVIDIA H200`, `NVIDIA A100-SXM4-80GB`), or `cpu`; None: not in the table."""
    words = name.upper().replace("-", " ").split()
    if words[:1] == ["CPU"]:
        return cpu(cores)
    return next((device for device in DEVICES if device.name in words), None)
