"""Moves memory between two processes at stable addresses, as a cut of a rollout engine's KV pool needs. "Fresh handles"
return to the driver; "kept handles" are shared by file descriptor. Times include messages."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, SkippedError, StageReport

if TYPE_CHECKING:
    import torch

    from rose.runtime.coserving.kv.device_memory import CudaMemory, PieceMemory, Reservation

_PIECE_BYTES = 2 << 20  # An engine's piece: 2 MiB, 1,024 slots of a row of 2 KiB.
_SPARE_BYTES = 4 << 30
_BATCH = 128  # File descriptors in a message; Linux allows 253.
_BLOCK_BYTES = 1 << 30  # Bytes that the neighbour takes at a time to fill the card.
_HANDED_OVER = "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    moved: int
    stays: int
    piece_bytes: int
    spare_bytes: int
    rounds: int

    @property
    def moved_bytes(self) -> int:
        return self.moved * self.piece_bytes


def measure(scope: Scope, report: StageReport) -> None:
    sizes = Sizes(
        moved=((2 if scope.quick else 8) << 30) // _PIECE_BYTES,
        stays=32,
        piece_bytes=_PIECE_BYTES,
        spare_bytes=_SPARE_BYTES,
        rounds=1 if scope.quick else 3,
    )
    with Neighbour(scope.device, scope.seconds) as first, Neighbour(scope.device, scope.seconds) as second:
        run_parts(report, sizes, _card(scope, report, sizes), first, second)


def run_parts(report: StageReport, sizes: Sizes, memory: PieceMemory, first: Neighbour, second: Neighbour) -> None:
    failures: dict[str, str] = {}
    parts: dict[str, Callable[[], object]] = {
        "neighbours": lambda: (first.ask("free_bytes"), second.ask("free_bytes")),
        "fresh handles": lambda: _move_fresh(report, sizes, memory, first),
        "kept handles": lambda: _move_kept(report, sizes, memory, second),
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            failures[name] = f"{type(error).__name__}: {error}"
        if name == "fresh handles":
            first.close()  # Frees its part of the card.
    report.fact("parts that failed", failures)
    report.claim("vmm: parts that failed", len(failures), "", 0, "lower")


def _card(scope: Scope, report: StageReport, sizes: Sizes) -> CudaMemory:
    import torch

    from rose.runtime.coserving.kv.device_memory import CudaMemory, DriverError

    try:
        report.fact("cuda-bindings", importlib.metadata.version("cuda-bindings"))
        torch.cuda.set_device(scope.device)
        memory = CudaMemory(torch.device(scope.device))
    except (importlib.metadata.PackageNotFoundError, DriverError) as error:
        raise SkippedError(f"no virtual memory management here: {error}")
    report.fact("granularity, bytes", memory.granularity)
    for name in ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", _HANDED_OVER):
        report.fact(name.lower().replace("_", " "), memory.attribute(name))
    if sizes.piece_bytes % memory.granularity:
        raise SkippedError(f"pieces of this card are {memory.granularity} bytes, not {sizes.piece_bytes}")
    free, needed = memory.free_bytes(), 2 * sizes.moved_bytes + sizes.spare_bytes
    report.fact("free at the start, bytes", free)
    if free < needed:
        raise SkippedError(f"the stage needs {needed} bytes of the card, and {free} are free: end what uses them")
    return memory


def _move_fresh(report: StageReport, sizes: Sizes, memory: PieceMemory, neighbour: Neighbour) -> None:
    pool = _Pool(sizes, memory)
    neighbour.ask("fill", leave_bytes=sizes.spare_bytes + sizes.moved_bytes // 2)
    given = {"pieces": sizes.moved, "piece_bytes": sizes.piece_bytes, "spare_bytes": sizes.spare_bytes}
    if memory.device.type != "cpu":  # CPU cores have no card to fill.
        report.fact("a neighbour without room got, bytes", neighbour.ask("take", **given))
    moved = seen = float("inf")
    out_ns, back_ns = [], []
    wrong = pool.replay()
    for _ in range(sizes.rounds):
        free_bytes = neighbour.ask("free_bytes")
        began_ns = time.monotonic_ns()
        pool.unmap()
        gone_ns = time.monotonic_ns() - began_ns
        seen = min(seen, (neighbour.ask("free_bytes") - free_bytes) / sizes.moved_bytes)
        began_ns = time.monotonic_ns()
        taken_bytes = neighbour.ask("take", **given)
        out_ns.append(gone_ns + time.monotonic_ns() - began_ns)
        moved = min(moved, taken_bytes / sizes.moved_bytes * neighbour.ask("check", first=-1) / sizes.moved)
        wrong += pool.replay()
        began_ns = time.monotonic_ns()
        neighbour.ask("give")
        pool.map()
        back_ns.append(time.monotonic_ns() - began_ns)
        wrong += pool.replay_moved()
    report.claim("vmm: bytes moved to the other process / asked", moved, "", 1, "higher")
    report.claim("vmm: the other process sees the freed bytes", seen, "/ freed", 1, "higher")
    report.claim("vmm: addresses stable under replay", int(pool.stable), "", 1, "higher")
    report.claim("vmm: replays wrong after a move", wrong, "", 0, "lower")
    report.fact("replays", pool.replays)
    report.claim("vmm: fresh handles, ms per GB", ms_per_gb(out_ns, sizes), "ms", 120, "lower")
    report.fact("fresh handles, back, ms per GB", ms_per_gb(back_ns, sizes))
    pool.close()


class _Pool:
    def __init__(self, sizes: Sizes, memory: PieceMemory) -> None:
        import torch

        from rose.runtime.coserving.kv.device_memory import Reservation

        self._memory = memory
        self._edges = sizes.stays, sizes.stays + sizes.moved
        self._reservation = Reservation(memory, self._edges[1], sizes.piece_bytes)
        self._reservation.map(0, self._edges[1])
        self._tensor = self._reservation.tensor((self._edges[1], sizes.piece_bytes // 4), torch.int32)
        self._address = self._tensor.data_ptr()
        stays, moves = self._tensor[: sizes.stays], self._tensor[sizes.stays :]
        # The work reads and writes a word of every piece at either end.
        self._work = _captured(memory.device, lambda: stays.add_(1))
        self._moved_work = _captured(memory.device, lambda: moves[:, :: moves.shape[1] - 1].add_(stays[0, 0]))
        self._tensor.zero_()
        self._stays, self._moves = stays, moves
        self.replays = 0
        self.stable = True

    def replay(self) -> int:
        self.replays += 1
        self._work()
        return int(not bool((self._stays == self.replays).all()))

    def replay_moved(self) -> int:
        self._moves.zero_()
        self._moved_work()
        ends = self._moves[:, :: self._moves.shape[1] - 1]
        right = bool((ends == self.replays).all())
        self.stable = self.stable and right and self._tensor.data_ptr() == self._address
        return int(not right) + self.replay()

    def unmap(self) -> None:
        self._reservation.unmap(*self._edges)

    def map(self) -> None:
        self._reservation.map(*self._edges)

    def close(self) -> None:
        self._memory.synchronize()
        self._reservation.close()


def _captured(device: torch.device, work: Callable[[], object]) -> Callable[[], object]:
    import torch

    work()
    if device.type == "cpu":
        return work
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def _move_kept(report: StageReport, sizes: Sizes, memory: PieceMemory, neighbour: Neighbour) -> None:
    import torch

    from rose.runtime.coserving.kv.device_memory import CudaMemory, Reservation

    if isinstance(memory, CudaMemory):
        if not memory.attribute(_HANDED_OVER):
            report.fact("kept handles", "not on this card: its memory cannot be handed over as file descriptors")
            return
        memory = CudaMemory(memory.device, exportable=True)
    handles = [memory.create(sizes.piece_bytes) for _ in range(sizes.moved)]
    reservation = Reservation(memory, sizes.moved, sizes.piece_bytes)
    reservation.map(0, sizes.moved, handles)
    tensor = reservation.tensor((sizes.moved, sizes.piece_bytes // 4), torch.int32)
    numbers = torch.arange(sizes.moved, dtype=torch.int32, device=memory.device)
    tensor.copy_(numbers[:, None])
    out_ns, back_ns, right = [], [], sizes.moved
    for number in range(1 + sizes.rounds):
        began_ns = time.monotonic_ns()
        reservation.unmap(0, sizes.moved)
        if number == 0:
            for first in range(0, sizes.moved, _BATCH):
                neighbour.hand(memory, handles[first : first + _BATCH])
        neighbour.ask("map_adopted", piece_bytes=sizes.piece_bytes)
        out_ns.append(time.monotonic_ns() - began_ns)
        right = min(right, neighbour.ask("check", first=0))
        began_ns = time.monotonic_ns()
        neighbour.ask("give")
        reservation.map(0, sizes.moved, handles)
        back_ns.append(time.monotonic_ns() - began_ns)
        right = min(right, int((tensor[:, -1] == numbers + 1).sum()))
        tensor.copy_(numbers[:, None])
    report.claim("vmm: pieces wrong after they were handed over", sizes.moved - right, "", 0, "lower")
    # The first move includes the one-time hand-over.
    report.claim("vmm: kept handles, ms per GB", ms_per_gb(out_ns[1:], sizes), "ms", 35, "lower")
    report.fact("kept handles, handed over the first time, ms per GB", ms_per_gb(out_ns[:1], sizes))
    report.fact("kept handles, back, ms per GB", ms_per_gb(back_ns, sizes))
    for handle in handles:
        memory.release(handle)
    reservation.close()


def ms_per_gb(took_ns: list[int], sizes: Sizes) -> float:
    return statistics.median(took_ns) / 1e6 / (sizes.moved_bytes / 1e9)


class Neighbour(Peer):
    def __init__(self, device: str, seconds: float) -> None:
        super().__init__("neighbour", _Taker, device)
        self._seconds = seconds

    def ask(self, method: str, **arguments: object) -> Any:
        self.tell(method, **arguments)
        return self._answer()

    def hand(self, memory: PieceMemory, handles: list[Any]) -> None:
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
        """Take all GPU memory except `leave_bytes`. On CPU cores, take nothing, because others use it."""
        while self._memory.device.type != "cpu" and self._memory.free_bytes() - _BLOCK_BYTES >= leave_bytes:
            block = self._torch.empty(_BLOCK_BYTES, dtype=self._torch.uint8, device=self._memory.device)
            self._filled.append(block)

    def take(self, pieces: int, piece_bytes: int, spare_bytes: int) -> int:
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
        return self._map(len(self._handles), piece_bytes, self._handles)

    def check(self, first: int) -> int:
        """Return how many pieces contain first, first + 1, ... (negative: any number). Then add one to each."""
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
