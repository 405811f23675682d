"""Maps pieces of device memory behind fixed addresses ("Virtual Memory Management", CUDA driver API,
https://docs.nvidia.com/cuda/cuda-driver-api/)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.kv_blocks import runs

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.host_memory import PieceMemory


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


class CudaMemory:
    """Pieces of a CUDA device's memory. Their sizes are multiples of `granularity`. Methods raise DriverError."""

    def __init__(self, device: torch.device) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise DriverError(f"the package cuda-bindings cannot be loaded: {error}")
        self._driver = driver
        self.device = torch.empty(1, device=device).device  # Makes torch's context the current context of this thread.
        self._call("cuInit", 0)
        self._ordinal = self._call("cuDeviceGet", self.device.index)
        if not self.attribute("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
            raise DriverError(f"{self.device} has no virtual memory management")
        where = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = where
        self._properties.location.id = int(self._ordinal)
        self._properties.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        self._access = driver.CUmemAccessDesc()
        self._access.location.type = where
        self._access.location.id = int(self._ordinal)
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        smallest = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._properties, smallest))

    def attribute(self, name: str) -> int:
        kind = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", kind, self._ordinal))

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])

    def reserve(self, size_bytes: int) -> int:
        return int(self._call("cuMemAddressReserve", size_bytes, self.granularity, 0, 0))

    def unreserve(self, address: int, size_bytes: int) -> None:
        self._call("cuMemAddressFree", address, size_bytes)

    def map(self, address: int, size_bytes: int) -> None:
        """Map a new piece. Nothing may access the piece until `allow` is called. Raises NoRoomError."""
        handle = self._call("cuMemCreate", size_bytes, self._properties, 0)
        try:
            self._call("cuMemMap", address, size_bytes, 0, handle, 0)
        finally:
            self._call("cuMemRelease", handle)  # The mapping keeps the memory.

    def allow(self, address: int, size_bytes: int) -> None:
        self._call("cuMemSetAccess", address, size_bytes, [self._access], 1)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._call("cuMemUnmap", address, size_bytes)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self._driver, name)(*arguments)
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise NoRoomError(f"{name}: the device has {self.free_bytes()} bytes left")
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise DriverError(f"{name}: {getattr(result, 'name', result)}")
        return values[0] if values else None


class Reservation:
    """Addresses for `pieces` pieces of `piece_bytes` bytes. Not thread-safe."""

    def __init__(self, memory: PieceMemory, pieces: int, piece_bytes: int) -> None:
        assert piece_bytes > 0, f"a piece of {piece_bytes} bytes"
        assert piece_bytes % memory.granularity == 0, f"{piece_bytes} bytes are no multiple of the granularity"
        self._memory, self._pieces, self.piece_bytes = memory, pieces, piece_bytes
        self.size_bytes = pieces * piece_bytes
        self.address = memory.reserve(self.size_bytes)
        self._mapped: set[int] = set()

    @property
    def mapped_bytes(self) -> int:
        return len(self._mapped) * self.piece_bytes

    def map(self, begin: int, end: int) -> None:
        """Map new pieces at [begin, end), all or none. Raises NoRoomError or DriverError."""
        assert 0 <= begin <= end <= self._pieces, f"pieces {begin} to {end} are not within {self._pieces}"
        assert self._mapped.isdisjoint(range(begin, end)), f"pieces {begin} to {end} are mapped already"
        memory, done = self._memory, begin
        try:
            for piece in range(begin, end):
                memory.map(self._at(piece), self.piece_bytes)
                done = piece + 1
            if end > begin:
                memory.allow(self._at(begin), (end - begin) * self.piece_bytes)
        except BaseException:
            for piece in range(begin, done):
                memory.unmap(self._at(piece), self.piece_bytes)
            raise
        self._mapped.update(range(begin, end))

    def unmap(self, begin: int, end: int) -> None:
        """Unmap the pieces [begin, end) once queued work has ended. Raises DriverError."""
        assert self._mapped.issuperset(range(begin, end)), f"pieces {begin} to {end} are not all mapped"
        self._memory.synchronize()
        for piece in range(begin, end):
            self._memory.unmap(self._at(piece), self.piece_bytes)
            self._mapped.discard(piece)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor at these addresses. The tensor does not keep this reservation alive."""
        device = self._memory.device
        storage: Any = torch._C._construct_storage_from_data_pointer(self.address, device, self.size_bytes)
        whole = torch.empty(0, dtype=dtype, device=device).set_(storage)
        return whole[: prod(shape)].view(tuple(shape))

    def close(self) -> None:
        for begin, end in runs(self._mapped):
            self.unmap(begin, end)
        self._memory.unreserve(self.address, self.size_bytes)

    def _at(self, piece: int) -> int:
        return self.address + piece * self.piece_bytes
