"""The kind of event in which a meter says what a device drew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rose.event_base import Event
from rose.event_fields import INTERVAL, Bytes, Count, InstantNs, Rule, Share

#: The `source` of a power event without power.
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Power(Event):
    """What a device drew and did over [t0_ns, t1_ns): mean power in milliwatts, and how it was read.

    `power_mw` is None just where `source` is "not measured", and `reason` why.
    """

    kind: ClassVar[str] = "power"
    rules: ClassVar[tuple[Rule, ...]] = INTERVAL
    t0_ns: InstantNs
    t1_ns: InstantNs
    power_mw: Count | None
    source: Literal["nvml-energy", "nvml-power", "rapl", "other", "not measured"]
    #: What the device's own energy counter went up by, and those of the CPU packages it is only a part of, millijoules.
    energy_mj: Count | None = None
    package_energy_mj: Count | None = None
    #: Share of the time in which the GPU ran a kernel, as NVML last sampled it, or the cores worked.
    busy_share: Share | None = None
    memory_used_bytes: Bytes | None = None
    sm_clock_mhz: Count | None = None
    #: What holds the GPU's clocks where they are, in words; empty: nothing does.
    clock_reasons: str | None = None
    mig_instances: Count | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.power_mw is None) != (self.source == NOT_MEASURED):
            raise ValueError(f"power: source {self.source!r} does not go with power_mw {self.power_mw}")
