from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.host_memory import HostMemory


class CountedMemory(HostMemory):
    """Host memory of at most `limit_bytes`."""

    def __init__(self, limit_bytes=1 << 40):
        super().__init__()
        self.limit_bytes, self._mapped = limit_bytes, {}

    @property
    def held_bytes(self):
        return sum(self._mapped.values())

    def free_bytes(self):
        return self.limit_bytes - self.held_bytes

    def map(self, address, size_bytes):
        if self.limit_bytes - self.held_bytes < size_bytes:
            raise NoRoomError(f"{size_bytes} bytes are needed, and {self.limit_bytes - self.held_bytes} are free")
        super().map(address, size_bytes)
        self._mapped[address] = size_bytes

    def unmap(self, address, size_bytes):
        super().unmap(address, size_bytes)
        del self._mapped[address]
