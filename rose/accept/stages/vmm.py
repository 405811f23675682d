"""Moves memory between two processes at stable addresses, as when a KV pool shrinks. Times include their messages."""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, SkippedError, StageReport
from rose.runtime.coserving.kv.device_memory import CudaMemory, DriverError, Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory, PieceMemory

_PIECE_BYTES = 2 << 20  # An engine's piece: 2 MiB, 1,024 slots of a row of 2 KiB.
_SPARE_BYTES = 4 << 30
_BLOCK_BYTES = 1 << 30  # Bytes that the neighbour takes at a time to fill the card.


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
    with Neighbour(scope.device, scope.seconds) as neighbour:
        move(report, sizes, _card(scope, report, sizes), neighbour)


def _card(scope: Scope, report: StageReport, sizes: Sizes) -> CudaMemory:
    try:
        report.fact("cuda-bindings", importlib.metadata.version("cuda-bindings"))
        torch.cuda.set_device(scope.device)
        memory = CudaMemory(torch.device(scope.device))
    except (importlib.metadata.PackageNotFoundError, DriverError) as error:
        raise SkippedError(f"CUDA's virtual memory management cannot be used here: {error}")
    report.fact("granularity, bytes", memory.granularity)
    if sizes.piece_bytes % memory.granularity:
        raise SkippedError(f"the GPU allocates multiples of {memory.granularity} bytes, not {sizes.piece_bytes}")
    free, needed = memory.free_bytes(), 2 * sizes.moved_bytes + sizes.spare_bytes
    report.fact("free at the start, bytes", free)
    if free < needed:
        raise SkippedError(f"the stage needs {needed} bytes of the card, and {free} are free: end other programs")
    return memory


def move(report: StageReport, sizes: Sizes, memory: PieceMemory, neighbour: Neighbour) -> None:
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
        pool.reservation.unmap(*pool.edges)
        gone_ns = time.monotonic_ns() - began_ns
        seen = min(seen, (neighbour.ask("free_bytes") - free_bytes) / sizes.moved_bytes)
        began_ns = time.monotonic_ns()
        taken_bytes = neighbour.ask("take", **given)
        out_ns.append(gone_ns + time.monotonic_ns() - began_ns)
        moved = min(moved, taken_bytes / sizes.moved_bytes * neighbour.ask("check") / sizes.moved)
        wrong += pool.replay()
        began_ns = time.monotonic_ns()
        neighbour.ask("give")
        pool.reservation.map(*pool.edges)
        back_ns.append(time.monotonic_ns() - began_ns)
        wrong += pool.replay_moved()
    report.claim("vmm: bytes moved to the other process / asked", moved, "", 1, "higher")
    report.claim("vmm: the other process sees the freed bytes", seen, "/ freed", 1, "higher")
    report.claim("vmm: addresses stable under replay", int(pool.stable), "", 1, "higher")
    report.claim("vmm: replays wrong after a move", wrong, "", 0, "lower")
    report.fact("replays", pool.replays)
    report.claim("vmm: fresh handles, ms per GB", ms_per_gb(out_ns, sizes), "ms", 120, "lower")
    report.fact("fresh handles, back, ms per GB", ms_per_gb(back_ns, sizes))
    memory.synchronize()
    pool.reservation.close()


class _Pool:
    def __init__(self, sizes: Sizes, memory: PieceMemory) -> None:
        self.edges = sizes.stays, sizes.stays + sizes.moved  #: Of the pieces that move.
        self.reservation = Reservation(memory, self.edges[1], sizes.piece_bytes)
        self.reservation.map(0, self.edges[1])
        self._tensor = self.reservation.tensor((self.edges[1], sizes.piece_bytes // 4), torch.int32)
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


def _captured(device: torch.device, work: Callable[[], object]) -> Callable[[], object]:
    work()
    if device.type == "cpu":
        return work
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def ms_per_gb(took_ns: list[int], sizes: Sizes) -> float:
    return statistics.median(took_ns) / 1e6 / (sizes.moved_bytes / 1e9)


class Neighbour(Peer):
    def __init__(self, device: str, seconds: float) -> None:
        super().__init__("neighbour", _Taker, device)
        self._seconds = seconds

    def ask(self, method: str, **arguments: object) -> Any:
        self.tell(method, **arguments)
        if not self.answers(self._seconds):
            raise PeerError(f"the process {self.name!r} did not answer within {self._seconds:g} s")
        return self.hear()


class _Taker:
    def __init__(self, _connection: Connection, device: str) -> None:
        if device != "cpu":
            torch.cuda.set_device(device)
        self._memory: PieceMemory = HostMemory() if device == "cpu" else CudaMemory(torch.device(device))
        self._filled: list[torch.Tensor] = []
        self._taken: Reservation | None = None

    def free_bytes(self) -> int:
        return self._memory.free_bytes()

    def fill(self, leave_bytes: int) -> None:
        """Take all GPU memory except `leave_bytes`. On CPU cores, take nothing: other programs use the memory."""
        while self._memory.device.type != "cpu" and self._memory.free_bytes() - _BLOCK_BYTES >= leave_bytes:
            self._filled.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=self._memory.device))

    def take(self, pieces: int, piece_bytes: int, spare_bytes: int) -> int:
        if self._memory.free_bytes() - pieces * piece_bytes < spare_bytes:
            return 0
        self._taken = Reservation(self._memory, pieces, piece_bytes)
        self._taken.map(0, pieces)
        return self._taken.mapped_bytes

    def check(self) -> int:
        """Write each piece's number into the piece. Return how many pieces then have their own number."""
        assert self._taken is not None, "nothing was taken"
        pieces = self._taken.size_bytes // self._taken.piece_bytes
        tensor = self._taken.tensor((pieces, self._taken.piece_bytes // 4), torch.int32)
        numbers = torch.arange(pieces, dtype=torch.int32, device=self._memory.device)
        tensor.copy_(numbers[:, None])
        return int(((tensor[:, 0] == numbers) & (tensor[:, -1] == numbers)).sum())

    def give(self) -> None:
        assert self._taken is not None, "nothing was taken"
        self._taken.close()
        self._taken = None
