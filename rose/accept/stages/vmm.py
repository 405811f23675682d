"""Memory that goes from one process to another while addresses stay, as a cut of a rollout engine's KV pool needs it.

This process has a pool of pieces mapped, of the size that an engine's has, and graphs that were captured over it. It
unmaps most of it; a neighbour, which had no room before, maps as much, and gives it back. Times are from the first call
of the one that gives to the last of the one that takes, with the messages between. Once the memory goes through the
driver ("fresh handles"), once as pieces to which both keep handles, handed over through file descriptors ("kept
handles"): only the first time of these has that in it, which is a fact beside the claim.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rose.accept.stage import Scope, SkippedError, StageReport
from rose.accept.stages.vmm_neighbour import Neighbour

if TYPE_CHECKING:
    import torch

    from rose.runtime.coserving.kv.device_memory import CudaMemory, PieceMemory, Reservation

#: As with an engine on a card: 2 MiB, of which a row of 2 KiB makes blocks of 1,024 slots.
PIECE_BYTES = 2 << 20
#: The last of the card is never filled.
SPARE_BYTES = 4 << 30
#: File descriptors in one message; Linux takes 253.
_BATCH = 128
_ATTRIBUTES = ("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What is moved, and what stays, in pieces; `rounds` there and back."""

    moved: int
    stays: int
    piece_bytes: int
    spare_bytes: int
    rounds: int

    @property
    def moved_bytes(self) -> int:
        return self.moved * self.piece_bytes


def measure(scope: Scope, report: StageReport) -> None:
    """Claims "vmm: ..."; skips where the card cannot do it, or has too little room for it now."""
    gib = 2 if scope.quick else 8
    sizes = Sizes(
        moved=(gib << 30) // PIECE_BYTES,
        stays=32,
        piece_bytes=PIECE_BYTES,
        spare_bytes=SPARE_BYTES,
        rounds=1 if scope.quick else 3,
    )
    # They load torch while this process does.
    with Neighbour(scope.device, scope.seconds) as first:
        with Neighbour(scope.device, scope.seconds) as second:
            memory = _card(scope, report, sizes)
            _parts(report, sizes, memory, first, second)


def _parts(report: StageReport, sizes: Sizes, memory: PieceMemory, first: Neighbour, second: Neighbour) -> None:
    """One that fails does not take the other with it."""
    failures: dict[str, str] = {}
    parts: dict[str, Callable[[], object]] = {
        "neighbours": lambda: (first.ask("ready"), second.ask("ready")),
        "fresh handles": lambda: fresh(report, sizes, memory, first),
        "kept handles": lambda: kept(report, sizes, memory, second),
        "pieces": lambda: by_piece(report, sizes, memory),
    }
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            traceback.print_exc()
            failures[name] = f"{type(error).__name__}: {error}"
        # What it filled of the card is the others' again.
        if name == "fresh handles":
            first.close()
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
    for name in _ATTRIBUTES:
        report.fact(name.lower().replace("_", " "), memory.attribute(name))
    if sizes.piece_bytes % memory.granularity:
        raise SkippedError(f"pieces of this card are {memory.granularity} bytes, not {sizes.piece_bytes}")
    free, needed = memory.free_bytes(), 2 * sizes.moved_bytes + sizes.spare_bytes
    report.fact("free at the start, bytes", free)
    if free < needed:
        raise SkippedError(f"{needed} bytes of the card are needed, and {free} are free: end what holds them")
    return memory


def fresh(report: StageReport, sizes: Sizes, memory: PieceMemory, neighbour: Neighbour) -> None:
    """Through the driver: unmapped here, created and mapped there, and back, under graphs that were captured before."""
    pool = Pool(sizes, memory)
    neighbour.ask("fill", leave_bytes=sizes.spare_bytes + sizes.moved_bytes // 2)
    given = {"pieces": sizes.moved, "piece_bytes": sizes.piece_bytes, "spare_bytes": sizes.spare_bytes}
    # On CPU cores there is no card to fill.
    refused = neighbour.ask("take", **given) if memory.device.type != "cpu" else {"taken_bytes": 0}
    report.fact("a neighbour without room got, bytes", refused["taken_bytes"])
    moved = seen = float("inf")
    out_ns, back_ns = [], []
    wrong = pool.replay()
    for _ in range(sizes.rounds):
        free = neighbour.ask("free")["free_bytes"]
        gone_ns = _timed(pool.unmap)
        seen = min(seen, (neighbour.ask("free")["free_bytes"] - free) / sizes.moved_bytes)
        began = time.monotonic_ns()
        taken = neighbour.ask("take", **given)["taken_bytes"]
        out_ns.append(gone_ns + time.monotonic_ns() - began)
        right = neighbour.ask("check", first=-1)["right"]
        moved = min(moved, taken / sizes.moved_bytes * right / sizes.moved)
        wrong += pool.replay()
        began = time.monotonic_ns()
        neighbour.ask("give")
        pool.map()
        back_ns.append(time.monotonic_ns() - began)
        wrong += pool.replay_moved()
    report.claim("vmm: bytes moved to the other process / asked", moved, "", 1, "higher")
    report.claim("vmm: the other process sees the freed bytes", seen, "/ freed", 1, "higher")
    report.claim("vmm: addresses stable under replay", int(pool.stable), "", 1, "higher")
    report.claim("vmm: replays wrong after a move", wrong, "", 0, "lower")
    report.fact("replays", pool.replays)
    _claim_time(report, "fresh handles", sizes, out_ns, 120)
    report.fact("fresh handles, back, ms per GB", _ms_per_gb(back_ns, sizes))
    pool.close()


class Pool:
    """A pool of which one part stays and the other moves, and work over each that was captured once."""

    def __init__(self, sizes: Sizes, memory: PieceMemory) -> None:
        import torch

        from rose.runtime.coserving.kv.device_memory import Reservation

        self._sizes, self._memory = sizes, memory
        self._all = sizes.stays + sizes.moved
        self._reservation: Reservation = Reservation(memory, self._all, sizes.piece_bytes)
        self._reservation.map(0, self._all)
        self._tensor = self._reservation.tensor((self._all, sizes.piece_bytes // 4), torch.int32)
        self._address = self._tensor.data_ptr()
        stays, moves = self._tensor[: sizes.stays], self._tensor[sizes.stays :]
        # Each reads and writes a word of every piece at either end.
        self._work = captured(memory.device, lambda: stays.add_(1))
        self._moved_work = captured(memory.device, lambda: moves[:, :: moves.shape[1] - 1].add_(stays[0, 0]))
        self._tensor.zero_()
        self._stays, self._moves = stays, moves
        self.replays = 0
        self.stable = True

    def replay(self) -> int:
        """Replays over what stays of which the outcome is wrong."""
        self.replays += 1
        self._work()
        return int(not bool((self._stays == self.replays).all()))

    def replay_moved(self) -> int:
        """The same over what moved, which is here again."""
        self._moves.zero_()
        self._moved_work()
        ends = self._moves[:, :: self._moves.shape[1] - 1]
        right = bool((ends == self.replays).all())
        self.stable = self.stable and right and self._tensor.data_ptr() == self._address
        return int(not right) + self.replay()

    def unmap(self) -> None:
        self._reservation.unmap(self._sizes.stays, self._all)

    def map(self) -> None:
        self._reservation.map(self._sizes.stays, self._all)

    def close(self) -> None:
        self._memory.synchronize()
        self._reservation.close()


def captured(device: torch.device, work: Callable[[], object]) -> Callable[[], object]:
    """`work` as a graph of a GPU that is replayed; on CPU cores as it is."""
    import torch

    work()
    if device.type == "cpu":
        return work
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def kept(report: StageReport, sizes: Sizes, memory: PieceMemory, neighbour: Neighbour) -> None:
    """The same pieces, with what is in them, mapped here or there; none is created for a move."""
    import torch

    from rose.runtime.coserving.kv.device_memory import CudaMemory, Reservation

    if isinstance(memory, CudaMemory):
        if not memory.attribute(_ATTRIBUTES[1]):
            report.fact("kept handles", "not on this card: its memory cannot be handed on as file descriptors")
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
        began = time.monotonic_ns()
        reservation.unmap(0, sizes.moved)
        if number == 0:
            for first in range(0, sizes.moved, _BATCH):
                neighbour.hand(memory, handles[first : first + _BATCH])
        neighbour.ask("map_adopted", piece_bytes=sizes.piece_bytes)
        out_ns.append(time.monotonic_ns() - began)
        # It finds the numbers, and leaves each larger by one.
        right = min(right, neighbour.ask("check", first=0)["right"])
        began = time.monotonic_ns()
        neighbour.ask("give")
        reservation.map(0, sizes.moved, handles)
        back_ns.append(time.monotonic_ns() - began)
        right = min(right, int((tensor[:, -1] == numbers + 1).sum()))
        tensor.copy_(numbers[:, None])
    report.claim("vmm: pieces wrong after they were handed over", sizes.moved - right, "", 0, "lower")
    _claim_time(report, "kept handles", sizes, out_ns[1:], 35)
    report.fact("kept handles, handed over the first time, ms per GB", _ms_per_gb(out_ns[:1], sizes))
    report.fact("kept handles, back, ms per GB", _ms_per_gb(back_ns, sizes))
    for handle in handles:
        memory.release(handle)
    reservation.close()


def by_piece(report: StageReport, sizes: Sizes, memory: PieceMemory) -> None:
    """What larger pieces would save, within one process; the detail has it."""
    from rose.runtime.coserving.kv.device_memory import Reservation

    times = {}
    for larger in (1, 4, 16):
        piece_bytes = sizes.piece_bytes * larger
        pieces = max(1, sizes.moved // (8 * larger))
        reservation = Reservation(memory, pieces, piece_bytes)
        here_ns = _timed(lambda count=pieces, there=reservation: there.map(0, count))  # type: ignore[misc]
        gone_ns = _timed(lambda count=pieces, there=reservation: there.unmap(0, count))  # type: ignore[misc]
        gigabytes = pieces * piece_bytes / 1e9
        times[str(piece_bytes)] = {"map": here_ns / 1e6 / gigabytes, "unmap": gone_ns / 1e6 / gigabytes}
        reservation.close()
    report.detail["ms per GB, by bytes of a piece"] = times
    report.save()


def _claim_time(report: StageReport, name: str, sizes: Sizes, took_ns: list[int], target_ms: float) -> None:
    report.claim(f"vmm: {name}, ms per GB", _ms_per_gb(took_ns, sizes), "ms", target_ms, "lower")


def _ms_per_gb(took_ns: list[int], sizes: Sizes) -> float:
    return statistics.median(took_ns) / 1e6 / (sizes.moved_bytes / 1e9)


def _timed(act: Callable[[], object]) -> int:
    began = time.monotonic_ns()
    act()
    return time.monotonic_ns() - began
