"""Reads a GPU's energy counter through NVML. MIG instances that share a card are not measured."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pynvml

from rose.clock import monotonic_ns
from rose.events import NOT_MEASURED, Power

ENGINES = 2  # engines that compute on a lent device
POWER_MW_MAX = 2_500_000  # no device draws more; a higher value means a reset or broken counter


class UnreadableError(Exception):
    """The device cannot be read now, but perhaps later."""


#: NVML's answers for a figure that this GPU, driver or user does not get; other errors are the card's.
_NOT_OFFERED = frozenset(
    (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    )
)

_CLOCK_REASONS = {
    pynvml.nvmlClocksEventReasonGpuIdle: "idle",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clocks set by the user",
    pynvml.nvmlClocksEventReasonSwPowerCap: "power cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "thermal, by software",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "thermal, by hardware",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    pynvml.nvmlClocksEventReasonDisplayClockSetting: "display clocks",
    pynvml.nvmlClocksThrottleReasonBoardLimit: "board limit",
    pynvml.nvmlClocksThrottleReasonReliability: "reliability",
}


def clock_reasons(bits: int) -> str:
    names = [name for bit, name in _CLOCK_REASONS.items() if bits & bit]
    unnamed = bits & ~sum(_CLOCK_REASONS)
    return "; ".join([*names, *([f"{unnamed:#x}"] if unnamed else [])])


class GpuInstrument:
    """Reads the GPU with index `gpu` in CUDA's list `visible` (CUDA_VISIBLE_DEVICES; None: all GPUs). On a host with
    GPUs of different types, set CUDA_DEVICE_ORDER=PCI_BUS_ID, because the driver lists GPUs in this order."""

    def __init__(self, gpu: int, visible: str | None = None) -> None:
        self._gpu = gpu
        self._visible = [token.strip() for token in visible.split(",")] if visible else None
        self._uuid: str | None = None  #: Finds the card again: when a card is lost, others change their index.
        self._initialised = False
        self.processes: int | None = None  #: Processes that computed on it at the last reading; None: unknown.

    @property
    def uuid(self) -> str:
        assert self._uuid is not None
        return self._uuid

    @property
    def others(self) -> int:
        return max(0, (self.processes or 0) - ENGINES)

    def open(self) -> int:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise UnreadableError(f"NVML: {error}") from error
        self._initialised = True
        try:
            self._card, self._instance = self._find()
            self._uuid = str(pynvml.nvmlDeviceGetUUID(self._card if self._instance is None else self._instance))
            self._mig_instances = len(_mig_instances(self._card))
            self._energy_mj = self._counter_mj()
            self._t0_ns = monotonic_ns()
        except (pynvml.NVMLError, UnreadableError) as error:
            self.close()
            raise UnreadableError(f"GPU {self._gpu}: {error}") from error
        return self._t0_ns

    def read(self) -> Power:
        try:
            return self._read()
        except pynvml.NVMLError as error:
            raise UnreadableError(f"GPU {self._gpu}: {error}") from error

    def close(self) -> None:
        if self._initialised:
            self._initialised = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def _read(self) -> Power:
        card = self._card
        instances = len(_mig_instances(card))
        energy_mj = self._counter_mj()
        t0_ns, t1_ns = self._t0_ns, monotonic_ns()
        power = self._power(energy_mj, t1_ns, max(instances, self._mig_instances))
        self._t0_ns, self._energy_mj, self._mig_instances = t1_ns, energy_mj, instances
        holder = card if self._instance is None else self._instance
        utilization = _offered(pynvml.nvmlDeviceGetUtilizationRates, card)
        memory = _offered(pynvml.nvmlDeviceGetMemoryInfo, holder)
        computing = _offered(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, holder)
        self.processes = None if computing is None else len(computing)
        bits = _offered(pynvml.nvmlDeviceGetCurrentClocksEventReasons, card)
        return Power(
            t0_ns=t0_ns,
            t1_ns=t1_ns,
            busy_share=None if utilization is None else min(1.0, utilization.gpu / 100),
            memory_used_bytes=None if memory is None else int(memory.used),
            sm_clock_mhz=_offered(pynvml.nvmlDeviceGetClockInfo, card, pynvml.NVML_CLOCK_SM),
            clock_reasons=None if bits is None else clock_reasons(int(bits)),
            mig_instances=instances or None,
            **power,
        )

    def _power(self, energy_mj: int | None, t1_ns: int, mig_instances: int) -> dict[str, Any]:
        before_mj, length_ns = self._energy_mj, max(1, t1_ns - self._t0_ns)
        unmeasured = {"power_mw": None, "source": NOT_MEASURED}
        if mig_instances > 1:
            return {**unmeasured, "reason": f"the card has one meter, and {mig_instances} MIG instances share it"}
        if before_mj is None or energy_mj is None:
            return {**unmeasured, "reason": "the GPU and its driver have no energy counter"}
        power_mw = round((energy_mj - before_mj) * 1_000_000_000 / length_ns)
        if not 0 <= power_mw <= POWER_MW_MAX:
            return {**unmeasured, "reason": f"the energy counter went from {before_mj} to {energy_mj} mJ"}
        return {"power_mw": power_mw, "source": "nvml-energy", "energy_mj": energy_mj - before_mj}

    def _counter_mj(self) -> int | None:
        counter_mj = _offered(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._card)
        return None if counter_mj is None else int(counter_mj)

    def _find(self) -> tuple[Any, Any]:
        """Return (card, MIG instance or None). Raises UnreadableError or NVMLError."""
        wanted: str | int = self._gpu if self._uuid is None else self._uuid
        if self._uuid is None and self._visible is not None:
            if self._gpu >= len(self._visible):
                raise UnreadableError(f"CUDA_VISIBLE_DEVICES has {len(self._visible)} GPUs: change the device's `gpu`")
            token = self._visible[self._gpu]
            wanted = int(token) if token.isdecimal() else token
        if isinstance(wanted, int):
            card = pynvml.nvmlDeviceGetHandleByIndex(wanted)
            # CUDA gives its first instance to a process that asks for a card by number.
            return card, next(iter(_mig_instances(card)), None)
        for card, instance in _handles():
            if str(pynvml.nvmlDeviceGetUUID(card if instance is None else instance)).startswith(wanted):
                return card, instance
        raise UnreadableError(f"the driver lists no {wanted}")


def _handles() -> Iterator[tuple[Any, Any]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceGetUUID(card)
            instances = _mig_instances(card)
        except pynvml.NVMLError:
            continue
        yield card, None
        for instance in instances:
            yield card, instance


def _mig_instances(card: Any) -> list[Any]:
    mode = _offered(pynvml.nvmlDeviceGetMigMode, card)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    instances = []
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            instances.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return instances


def _offered(read: Callable[..., Any], *arguments: Any) -> Any:
    """Return `read`'s result, or None if the GPU or driver lacks it or forbids it. Raises NVMLError."""
    try:
        return read(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_OFFERED:
            return None
        raise


def survey() -> tuple[list[tuple[str, str]], str]:
    """Return (name, how its power is read) for each GPU, and a text that explains why the list may be empty."""
    try:
        pynvml.nvmlInit()
        cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [(str(pynvml.nvmlDeviceGetName(card)), _reading_of(card)) for card in cards], "the driver lists none"
    except pynvml.NVMLError as error:
        return [], str(error)


def _reading_of(card: Any) -> str:
    if len(_mig_instances(card)) > 1:
        return "not measured: MIG instances share its meter"
    if _offered(pynvml.nvmlDeviceGetTotalEnergyConsumption, card) is None:
        return "not measured: the GPU and its driver have no energy counter"
    return "by its energy counter"
