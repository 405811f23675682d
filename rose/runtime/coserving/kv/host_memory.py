"""Maps pieces of host memory at fixed addresses, like `device_memory.CudaMemory`. The pieces are anonymous files."""

import ctypes
import errno
import mmap
import os

import torch

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.device_memory import CudaMemory, DriverError

_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value


class HostMemory:
    device = torch.device("cpu")
    granularity = mmap.PAGESIZE

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        sizes = (ctypes.c_void_p, ctypes.c_size_t)
        self._libc.mmap.argtypes = (*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.munmap.argtypes = sizes
        self._libc.mprotect.argtypes = (*sizes, ctypes.c_int)

    def free_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE

    def reserve(self, size_bytes: int) -> int:
        return self._mmap(None, size_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)

    def unreserve(self, address: int, size_bytes: int) -> None:
        if self._libc.munmap(address, size_bytes):
            raise DriverError(f"munmap: {os.strerror(ctypes.get_errno())}")

    def map(self, address: int, size_bytes: int) -> None:
        descriptor = os.memfd_create("rose-kv")
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
            self._mmap(address, size_bytes, _PROT_NONE, mmap.MAP_SHARED | _MAP_FIXED, descriptor)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise NoRoomError(f"{size_bytes} bytes are needed: {error.strerror}")
            raise
        finally:
            os.close(descriptor)

    def allow(self, address: int, size_bytes: int) -> None:
        if self._libc.mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
            raise DriverError(f"mprotect: {os.strerror(ctypes.get_errno())}")

    def unmap(self, address: int, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(address, size_bytes, _PROT_NONE, flags, -1)

    def synchronize(self) -> None:
        """Return at once, because nothing is queued on CPU cores."""

    def _mmap(self, address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        mapped: int | None = self._libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if mapped == _FAILED or mapped is None:
            raise DriverError(f"mmap of {size_bytes} bytes: {os.strerror(ctypes.get_errno())}")
        return mapped


PieceMemory = CudaMemory | HostMemory
