"""Records a device's power and use as `power` events without gaps or overlaps, also while nothing can be measured."""

import dataclasses
import os
import threading
from collections.abc import Sequence

import psutil

from rose.clock import Anchor, monotonic_ns
from rose.config import DeviceConfig
from rose.events import NOT_MEASURED, Power, Record
from rose.runtime.coserving.meter.meter_gpu import GpuInstrument, UnreadableError

RETRY_S_MAX = 60.0  # the longest pause before a device that could not be read is tried again
SHORTEST_S = 0.2  # the last reading must cover this much: energy counters update every 100 ms at worst
_JOIN_S = 5.0  # the longest wait for a driver, which may hang


class CoresInstrument:
    """Reads the use of cores, which have no power meter."""

    def __init__(self, cores: Sequence[int]) -> None:
        self._cores = frozenset(cores)

    def open(self) -> int:
        """Return when the first reading begins, in monotonic ns. Raises UnreadableError."""
        self._busy_s, self._total_s = self._times_s()
        self._t0_ns = monotonic_ns()
        return self._t0_ns

    def read(self) -> Power:
        """Return the use since the last reading. Its times are monotonic ns. Raises UnreadableError."""
        busy_s, total_s = self._times_s()
        t0_ns, t1_ns = self._t0_ns, monotonic_ns()
        length_s = total_s - self._total_s
        share = min(1.0, max(0.0, (busy_s - self._busy_s) / length_s)) if length_s > 0 else None
        self._t0_ns, self._busy_s, self._total_s = t1_ns, busy_s, total_s
        return Power(
            t0_ns=t0_ns,
            t1_ns=t1_ns,
            power_mw=None,
            source=NOT_MEASURED,
            busy_share=share,
            reason="CPU cores have no power meter of their own",
        )

    def close(self) -> None:
        """Do nothing, because cores need no release."""

    def _times_s(self) -> tuple[float, float]:
        times = psutil.cpu_times(percpu=True)
        if missing := [core for core in sorted(self._cores) if core >= len(times)]:
            raise UnreadableError(f"cores {missing} are offline, or this host does not have them")
        busy_s = total_s = 0.0
        for core in self._cores:
            one = times[core]
            # `user` includes guests.
            total = one.user + one.nice + one.system + one.idle + one.iowait + one.irq + one.softirq + one.steal
            total_s += total
            busy_s += total - one.idle - one.iowait - one.steal
        return busy_s, total_s


class DeviceMeter:
    """Reads `device` every `period_s` seconds in a thread, or never if the period is 0."""

    def __init__(
        self,
        device: DeviceConfig,
        record: Record,
        anchor: Anchor,
        period_s: float,
        instrument: CoresInstrument | GpuInstrument | None = None,
    ) -> None:
        self._device_id = device.id
        self._record = record
        self._anchor = anchor
        self._period_s = period_s
        if instrument is None:
            gpu, visible = device.gpu, os.environ.get("CUDA_VISIBLE_DEVICES")
            instrument = CoresInstrument(device.cores) if gpu is None else GpuInstrument(gpu, visible)
        self._instrument = instrument
        self._until_ns = 0  #: The device's time is accounted for until then, monotonic.
        self._unreadable: str | None = None
        self._stopping = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._period_s > 0 and self._thread is None:
            self._until_ns = monotonic_ns()
            self._thread = threading.Thread(target=self._run, name=f"meter-{self._device_id}", daemon=True)
            self._thread.start()

    @property
    def others(self) -> int:
        """Return how many processes computed on the GPU beside the two engines; 0 if that is unknown."""
        return self._instrument.others if isinstance(self._instrument, GpuInstrument) else 0

    def stop(self) -> None:
        """Take a last reading and stop, within seconds even if the driver hangs."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._closed = True

    def _run(self) -> None:
        pause_s = self._period_s
        while not self._stopping.is_set():
            try:
                opened_ns = self._instrument.open()
                if self._unreadable is not None:
                    self._gap(opened_ns, f"{self._unreadable}; it can be read again")
                    self._unreadable = None
                self._until_ns = opened_ns
                while not self._stopping.wait(max(0.0, self._period_s - (monotonic_ns() - self._until_ns) / 1e9)):
                    self._take(self._instrument.read())
                    pause_s = self._period_s
                if monotonic_ns() - self._until_ns >= SHORTEST_S * 1e9:
                    self._take(self._instrument.read())
            except Exception as error:  # the agent continues without its meter, whatever a driver does
                reason = str(error) or type(error).__name__
                if self._unreadable is None:
                    self._gap(monotonic_ns(), reason)
                self._unreadable = reason
            finally:
                self._instrument.close()
            if self._unreadable is not None:
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, max(RETRY_S_MAX, self._period_s))
        if self._unreadable is not None and monotonic_ns() - self._until_ns > SHORTEST_S * 1e9:
            self._gap(monotonic_ns(), self._unreadable)

    def _gap(self, to_ns: int, reason: str) -> None:
        self._take(Power(t0_ns=self._until_ns, t1_ns=to_ns, power_mw=None, source=NOT_MEASURED, reason=reason))

    def _take(self, reading: Power) -> None:
        self._until_ns = reading.t1_ns
        if self._closed:
            return
        t0_ns, t1_ns = self._anchor.utc_ns(reading.t0_ns), self._anchor.utc_ns(reading.t1_ns)
        event = dataclasses.replace(reading, at_us=t1_ns // 1000, device_id=self._device_id, t0_ns=t0_ns, t1_ns=t1_ns)
        self._record(event)
