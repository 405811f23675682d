"""Maps pieces of host memory at fixed addresses, as `device_memory.CudaMemory` does."""

import ctypes
import errno
import mmap
import os

import torch

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.device_memory import DriverError

_PROT_NONE = 0
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value


class HostMemory:
    device = torch.device("cpu")
    granularity = mmap.PAGESIZE

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._libc = ctypes.CDLL(None, use_errno=True)
        sizes = (ctypes.c_void_p, ctypes.c_size_t)
        self._libc.mmap.argtypes = (*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.munmap.argtypes = sizes
        self._libc.mprotect.argtypes = (*sizes, ctypes.c_int)
        #: By a file's inode: how often it is mapped or has a handle here, and its size.
        self._uses: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._files: dict[int, int] = {}  # inode of the file at an address

    @property
    def held_bytes(self) -> int:
        return sum(self._sizes.values())

    def free_bytes(self) -> int:
        if self._limit_bytes is not None:
            return self._limit_bytes - self.held_bytes
        return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE

    def reserve(self, size_bytes: int) -> int:
        return self._mmap(None, size_bytes, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)

    def unreserve(self, address: int, size_bytes: int) -> None:
        if self._libc.munmap(address, size_bytes):
            raise DriverError(f"munmap: {os.strerror(ctypes.get_errno())}")

    def create(self, size_bytes: int) -> int:
        if self._limit_bytes is not None and self.free_bytes() < size_bytes:
            raise NoRoomError(f"{size_bytes} bytes are needed, and {self.free_bytes()} are free")
        descriptor = os.memfd_create("rose-kv")
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                raise NoRoomError(f"{size_bytes} bytes are needed: {error.strerror}")
            raise
        self._use(descriptor)
        return descriptor

    def release(self, handle: int) -> None:
        number = os.fstat(handle).st_ino
        os.close(handle)
        self._drop(number)

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self._mmap(address, size_bytes, _PROT_NONE, mmap.MAP_SHARED | _MAP_FIXED, handle)
        self._files[address] = os.fstat(handle).st_ino
        self._use(handle)

    def allow(self, address: int, size_bytes: int) -> None:
        if self._libc.mprotect(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE):
            raise DriverError(f"mprotect: {os.strerror(ctypes.get_errno())}")

    def unmap(self, address: int, size_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
        self._mmap(address, size_bytes, _PROT_NONE, flags, -1)
        self._drop(self._files.pop(address))

    def synchronize(self) -> None:
        """Return at once, because nothing is queued on CPU cores."""

    def export(self, handle: int) -> int:
        return os.dup(handle)

    def adopt(self, descriptor: int) -> int:
        handle = os.dup(descriptor)
        self._use(handle)
        return handle

    def _use(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._uses[status.st_ino] = self._uses.get(status.st_ino, 0) + 1
        self._sizes[status.st_ino] = status.st_size

    def _drop(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number], self._sizes[number]

    def _mmap(self, address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
        mapped: int | None = self._libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
        if mapped == _FAILED or mapped is None:
            raise DriverError(f"mmap of {size_bytes} bytes: {os.strerror(ctypes.get_errno())}")
        return mapped
