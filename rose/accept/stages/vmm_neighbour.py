"""The other process of the stage `vmm`: it takes memory of the card, checks it and gives it back on request."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rose.accept.peer import Peer, PeerError

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.device_memory import PieceMemory, Reservation

_BLOCK_BYTES = 1 << 30


class Neighbour(Peer):
    """The process, seen from the stage."""

    def __init__(self, device: str, seconds: float) -> None:
        super().__init__("neighbour", _Taker, device)
        self._seconds = seconds

    def ask(self, method: str, **arguments: object) -> Any:
        """Return the answer. Raises PeerError."""
        self.tell(method, **arguments)
        return self._answer()

    def hand(self, memory: PieceMemory, handles: list[Any]) -> None:
        """Hand over pieces of `memory`; this process keeps its handles. Raises PeerError and DriverError."""
        descriptors: list[int] = []
        try:
            for handle in handles:
                descriptors.append(memory.export(handle))
            self.tell("adopt", count=len(descriptors))
            with _socket(self.connection) as sock:
                reduction.sendfds(sock, descriptors)
            self._answer()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self) -> Any:
        if not self.answers(self._seconds):
            raise PeerError(f"the process {self.name!r} did not answer within {self._seconds:g} s")
        return self.hear()


class _Taker:
    """Carries out the methods of the neighbour."""

    def __init__(self, connection: Connection, device: str) -> None:
        import torch

        from rose.runtime.coserving.kv.device_memory import CudaMemory
        from rose.runtime.coserving.kv.host_memory import HostMemory

        if device != "cpu":
            torch.cuda.set_device(device)
        self._torch, self._connection = torch, connection
        self._memory: PieceMemory = HostMemory() if device == "cpu" else CudaMemory(torch.device(device))
        self._filled: list[Any] = []
        self._taken: Reservation | None = None
        self._pieces = self._piece_bytes = 0
        self._handles: list[Any] = []

    def free_bytes(self) -> int:
        return self._memory.free_bytes()

    def fill(self, leave_bytes: int) -> None:
        """Take all of the card but `leave_bytes`; nothing on CPU cores, whose memory others use."""
        while self._memory.device.type != "cpu" and self._memory.free_bytes() - _BLOCK_BYTES >= leave_bytes:
            block = self._torch.empty(_BLOCK_BYTES, dtype=self._torch.uint8, device=self._memory.device)
            self._filled.append(block)

    def take(self, pieces: int, piece_bytes: int, spare_bytes: int) -> int:
        """Map all pieces if the device then still has `spare_bytes`, as an engine does. Returns the bytes mapped."""
        if self._memory.free_bytes() - pieces * piece_bytes < spare_bytes:
            return 0
        return self._map(pieces, piece_bytes)

    def adopt(self, count: int) -> None:
        with _socket(self._connection) as sock:
            descriptors = reduction.recvfds(sock, count)
        try:
            self._handles += [self._memory.adopt(descriptor) for descriptor in descriptors]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def map_adopted(self, piece_bytes: int) -> int:
        """Map all pieces that were handed over, and keep their handles."""
        return self._map(len(self._handles), piece_bytes, self._handles)

    def check(self, first: int) -> int:
        """Return how many pieces hold first, first + 1, ... (any number if negative), and leave each larger by one."""
        torch = self._torch
        assert self._taken is not None, "nothing was taken"
        tensor = self._taken.tensor((self._pieces, self._piece_bytes // 4), torch.int32)
        numbers = torch.arange(self._pieces, dtype=torch.int32, device=self._memory.device) + max(0, first)
        right = torch.ones(self._pieces, dtype=torch.bool, device=self._memory.device)
        if first >= 0:
            right &= (tensor[:, 0] == numbers) & (tensor[:, -1] == numbers)
        tensor.copy_((numbers + 1)[:, None])
        right &= (tensor[:, 0] == numbers + 1) & (tensor[:, -1] == numbers + 1)
        return int(right.sum())

    def give(self) -> None:
        assert self._taken is not None, "nothing was taken"
        self._taken.close()
        self._taken = None

    def _map(self, pieces: int, piece_bytes: int, handles: Sequence[Any] = ()) -> int:
        from rose.runtime.coserving.kv.device_memory import Reservation

        self._pieces, self._piece_bytes = pieces, piece_bytes
        self._taken = Reservation(self._memory, pieces, piece_bytes)
        self._taken.map(0, pieces, handles)
        return self._taken.mapped_bytes


def _socket(connection: Connection) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
