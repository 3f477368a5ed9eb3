"""From counted work to seconds on a device."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from .device import DeviceSpec
from .model_spec import ModelSpec
from .work import Work


class Seconds(NamedTuple):
    """Seconds by what the device is busy with."""

    linear: float
    attention: float
    traffic: float

    @property
    def total(self) -> float:
        """These phases follow each other in every layer, so they add up."""
        return self.linear + self.attention + self.traffic


@dataclass(frozen=True)
class Roofline:
    """A model on a device. `precision`: of the linear layers (see `DeviceSpec.linear_flops`); attention runs in bfloat16."""

    model: ModelSpec
    device: DeviceSpec
    precision: str = "auto"
    kv_dtype: str = "bfloat16"
    kv_is_free: bool = False

    def speed_of_light(self) -> "Roofline":
        """The device at its peaks, and KV that moves in no time: only arithmetic that can't be avoided is left."""
        return replace(self, device=self.device.at_peak(), kv_is_free=True)

    def seconds(self, work: Work) -> Seconds:
        """Time for `work`.

        Kept KV is read while attention computes, so the slower of the two counts (`attention`). Writing KV is a phase of its
        own (`traffic`). Answers cost nothing: the head keeps only the rows of the answer tokens.
        """
        device, model, efficiency = self.device, self.model, self.device.efficiency
        linear = work.fresh * model.linear_flops / (device.linear_flops(self.precision) * efficiency.linear)
        flops = model.pair_flops * (work.own_pairs / efficiency.own + work.kept_pairs / efficiency.kept)
        attention = flops / device.bf16_flops
        if self.kv_is_free:
            return Seconds(linear, attention, 0.0)
        moved = model.kv_bytes(self.kv_dtype) / (device.bandwidth * efficiency.traffic)
        return Seconds(linear, max(attention, work.kv_read * moved), work.kv_written * moved)

    def __call__(self, work: Work) -> float:
        """`seconds(work).total`."""
        return self.seconds(work).total
