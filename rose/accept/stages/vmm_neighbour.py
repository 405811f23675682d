"""The other process of the stage `vmm`: it takes memory of the card, checks it and gives it back on request."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.device_memory import PieceMemory, Reservation

_BLOCK_BYTES = 1 << 30


class Neighbour:
    """The process, seen from the stage. It ends with this object, or when the stage does."""

    def __init__(self, device: str, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._seconds = seconds
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, device), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, what: str, **arguments: object) -> Any:
        """Return the answer. Raises RuntimeError with what went wrong there, or if none came in time."""
        return self._ask(what, arguments, [])

    def hand(self, memory: PieceMemory, handles: list[Any]) -> None:
        """Hand over pieces of `memory`; this process keeps its handles. Raises as `ask` does, and DriverError."""
        descriptors: list[int] = []
        try:
            for handle in handles:
                descriptors.append(memory.export(handle))
            self._ask("adopt", {"count": len(descriptors)}, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _ask(self, what: str, arguments: dict[str, object], descriptors: list[int]) -> Any:
        failed: object = "no answer in time"
        try:
            self._connection.send((what, arguments))
            if descriptors:
                with _socket(self._connection) as sock:
                    reduction.sendfds(sock, descriptors)
            if self._connection.poll(self._seconds):
                answer, failed = self._connection.recv()
        except (EOFError, OSError) as error:
            failed = f"it ended ({error or type(error).__name__})"
        if failed is not None:
            raise RuntimeError(f"the other process, at {what!r}: {failed}")
        return answer

    def close(self) -> None:
        """End the process; its memory of the card is free then."""
        self._connection.close()
        self._process.kill()
        self._process.join()


class _Taker:
    """What the neighbour does, by method."""

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


def _serve(connection: Connection, device: str) -> None:
    """Answer until the stage closes its end."""
    taker, broken = None, None
    try:
        taker = _Taker(connection, device)
    except Exception as error:
        traceback.print_exc()
        broken = f"{type(error).__name__}: {error}"
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer, failed = None if taker is None else getattr(taker, what)(**arguments), broken
        except Exception as error:
            traceback.print_exc()
            answer, failed = None, f"{type(error).__name__}: {error}"
        connection.send((answer, failed))
