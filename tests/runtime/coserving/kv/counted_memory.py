import os
from collections import Counter

from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.host_memory import HostMemory


class CountedMemory(HostMemory):
    """Host memory of at most `limit_bytes`. It is held while it is mapped or has a handle."""

    def __init__(self, limit_bytes=1 << 40):
        super().__init__()
        self.limit_bytes, self._uses, self._mapped = limit_bytes, Counter(), {}

    @property
    def held_bytes(self):
        return sum(size for (_, size), uses in self._uses.items() if uses)

    def free_bytes(self):
        return self.limit_bytes - self.held_bytes

    def create(self, size_bytes):
        if self.free_bytes() < size_bytes:
            raise NoRoomError(f"{size_bytes} bytes are needed, and {self.free_bytes()} are free")
        handle = super().create(size_bytes)
        self._uses[file_of(handle)] += 1
        return handle

    def release(self, handle):
        self._uses[file_of(handle)] -= 1
        super().release(handle)

    def map(self, address, size_bytes, handle):
        super().map(address, size_bytes, handle)
        self._mapped[address] = file_of(handle)
        self._uses[file_of(handle)] += 1

    def unmap(self, address, size_bytes):
        super().unmap(address, size_bytes)
        self._uses[self._mapped.pop(address)] -= 1


def file_of(handle):
    status = os.fstat(handle)
    return status.st_ino, status.st_size
