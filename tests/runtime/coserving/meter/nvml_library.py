"""Stands in for libnvidia-ml under pynvml."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml


@dataclass
class Card:
    """A figure that is None is not supported."""

    uuid: str
    energy_mj: int | None = 0
    busy_percent: int | None = 0
    memory_used_bytes: int = 0
    sm_clock_mhz: int = 1980
    clock_bits: int = 0
    #: Processes that compute on it; None: not offered.
    processes: int | None = 2
    #: Memory used by each MIG instance; None: MIG is off.
    mig: list[int] | None = None
    #: Every call about the card answers this.
    error: int | None = None


@dataclass
class Library:
    cards: list[Card]
    #: Symbols that this version of the driver does not have.
    without: set[str] = field(default_factory=set)
    #: What nvmlInit answers.
    init: int = pynvml.NVML_SUCCESS
    references: int = 0
    calls: int = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml") or name in self.without or name not in _FUNCTIONS:
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls += 1
            if name == "nvmlInitWithFlags":
                self.references += self.init == pynvml.NVML_SUCCESS
                return self.init
            if self.references <= 0:
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            answer: int | None = _FUNCTIONS[name](self, *arguments)
            return pynvml.NVML_SUCCESS if answer is None else answer

        return call

    def handle(self, card: int, instance: int = 0) -> int:
        return 16 * (card + 1) + instance


def _resolve(library: Library, handle: Any) -> tuple[Card, int]:
    address = ctypes.cast(handle, ctypes.c_void_p).value or 0
    return library.cards[address // 16 - 1], address % 16


def _point(into: Any, address: int) -> None:
    into._obj.contents = ctypes.cast(address, pynvml.c_nvmlDevice_t).contents


def _by_index(library: Library, index: Any, into: Any) -> int | None:
    if index.value >= len(library.cards):
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    error = library.cards[index.value].error
    if error is None:
        _point(into, library.handle(index.value))
    return error


def _uuid(library: Library, handle: Any, into: Any, _length: Any) -> int | None:
    card, instance = _resolve(library, handle)
    into.value = (f"MIG-{card.uuid}-{instance}" if instance else f"GPU-{card.uuid}").encode()
    return card.error


def _mig_mode(library: Library, handle: Any, current: Any, pending: Any) -> int | None:
    card, _ = _resolve(library, handle)
    current._obj.value = pending._obj.value = card.mig is not None
    return card.error


def _mig_by_index(library: Library, handle: Any, index: Any, into: Any) -> int | None:
    card, _ = _resolve(library, handle)
    if index.value >= len(card.mig or ()):
        return int(pynvml.NVML_ERROR_NOT_FOUND)
    _point(into, library.handle(library.cards.index(card), index.value + 1))
    return None


def _memory(library: Library, handle: Any, into: Any) -> int | None:
    card, instance = _resolve(library, handle)
    assert isinstance(into._obj, pynvml.c_nvmlMemory_t)
    if instance > len(card.mig or ()):
        return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    into._obj.used = (card.mig or [])[instance - 1] if instance else card.memory_used_bytes
    return card.error


def _utilization(library: Library, handle: Any, into: Any) -> int | None:
    card, _ = _resolve(library, handle)
    assert isinstance(into._obj, pynvml.c_nvmlUtilization_t)
    if card.busy_percent is None or card.mig is not None:
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
    into._obj.gpu = card.busy_percent
    return card.error


def _processes(library: Library, handle: Any, count: Any, into: Any) -> int | None:
    card, _ = _resolve(library, handle)
    if card.processes is None:
        return int(pynvml.NVML_ERROR_NO_PERMISSION)
    room, count._obj.value = count._obj.value, card.processes
    return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if room < card.processes else card.error


def _number(name: str) -> Callable[..., int | None]:
    def answer(library: Library, handle: Any, *rest: Any) -> int | None:
        card, _ = _resolve(library, handle)
        value = getattr(card, name)
        if value is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        rest[-1]._obj.value = value
        return card.error

    return answer


_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "nvmlInitWithFlags": lambda library: None,
    "nvmlShutdown": lambda library: setattr(library, "references", library.references - 1),
    "nvmlDeviceGetCount_v2": lambda library, into: setattr(into._obj, "value", len(library.cards)),
    "nvmlDeviceGetHandleByIndex_v2": _by_index,
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetName": lambda library, handle, into, length: setattr(into, "value", b"a card"),
    "nvmlDeviceGetMigMode": _mig_mode,
    "nvmlDeviceGetMaxMigDeviceCount": lambda library, handle, into: setattr(into._obj, "value", 7),
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig_by_index,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _utilization,
    "nvmlDeviceGetComputeRunningProcesses_v3": _processes,
    "nvmlDeviceGetTotalEnergyConsumption": _number("energy_mj"),
    "nvmlDeviceGetClockInfo": _number("sm_clock_mhz"),
    "nvmlDeviceGetCurrentClocksEventReasons": _number("clock_bits"),
}


@contextmanager
def installed(*cards: Card, without: set[str] | None = None, init: int = pynvml.NVML_SUCCESS) -> Iterator[Library]:
    library = Library(list(cards), without or set(), init)
    before, cache = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield library
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml._nvmlGetFunctionPointer_cache.update(cache)
