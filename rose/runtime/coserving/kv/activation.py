"""Moves a rollout engine's memory to its device for a lease, and takes it off the device afterwards.

With `coserving.activation` "leased" on a GPU, SGLang's memory saver moves the weights and the KV pool. In all other
cases, only the pool's memory moves (`memory.PoolMemory`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.policy.lease import ACTIVATION_NS_MAX

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.memory import PoolMemory

#: Arguments with which weights and KV pool can leave the GPU.
LEASED_ARGUMENTS = ("--enable-memory-saver", "--enable-weights-cpu-backup")
_WEIGHTS = "weights"
_KV = "kv_cache"


class NoRoomError(Exception):
    """The device has too little room for the engine's memory."""


@dataclass(frozen=True, slots=True)
class Move:
    moved_bytes: int
    away: bool
    weights_alone: bool  # without the KV pool, for a sync

    def to_aux(self) -> int:
        return self.moved_bytes << 2 | self.weights_alone << 1 | self.away

    @classmethod
    def from_aux(cls, aux: int) -> Move:
        return cls(aux >> 2, bool(aux & 1), bool(aux & 2))


class SavedMemory:
    """Weights and KV pool in SGLang's memory saver. Their addresses never change, so captured graphs stay valid."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._away_bytes: dict[str, int] = {}  # the bytes that each released part freed

    @classmethod
    def of_gpu(cls, scheduler: Any) -> SavedMemory | None:
        """Return the saved memory, or None if the engine was started without a memory saver."""
        arguments = scheduler.server_args
        leased = arguments.enable_memory_saver and arguments.enable_weights_cpu_backup
        return cls(scheduler) if leased and str(scheduler.device) != "cpu" else None

    @property
    def releasable(self) -> bool:
        return bool(self._scheduler.is_fully_idle())

    def bring(self, _tokens: int = 0, *, weights_alone: bool = False) -> int:
        """Bring the memory to the device. Return its size in bytes. If NoRoomError is raised, nothing was moved."""
        from sglang.srt.managers.io_struct import ResumeMemoryOccupationReqInput

        tags = [tag for tag in (_WEIGHTS, _KV) if tag in self._away_bytes and not (weights_alone and tag == _KV)]
        needed, free = sum(self._away_bytes[tag] for tag in tags), _free_bytes()
        if free < needed:
            raise NoRoomError(f"{needed} bytes of device memory are needed, and {free} are free")
        # Checked first: without room the saver ends the process.
        self._scheduler.weight_updater.resume_memory_occupation(ResumeMemoryOccupationReqInput(tags=tags))
        for tag in tags:
            del self._away_bytes[tag]
        return free - _free_bytes()

    def give_back(self) -> int:
        from sglang.srt.managers.io_struct import ReleaseMemoryOccupationReqInput

        released = 0
        for tag in (_KV, _WEIGHTS):
            if tag not in self._away_bytes:
                free = _free_bytes()
                request = ReleaseMemoryOccupationReqInput(tags=[tag])
                self._scheduler.weight_updater.release_memory_occupation(request)
                self._away_bytes[tag] = _free_bytes() - free
                released += self._away_bytes[tag]
        return released


class Activation:
    """Brings an engine's memory to its device, and releases it. Its methods are called only between two steps."""

    def __init__(self, page: ArbiterPage, memory: SavedMemory | PoolMemory, weights_needed: Callable[[], bool]) -> None:
        self._page, self._memory, self._weights_needed = page, memory, weights_needed
        self._saved = memory if isinstance(memory, SavedMemory) else None
        self._weights_in = self._all_in = True  # As after an engine's start. All is in only where the weights are.

    @property
    def weights_in(self) -> bool:
        return self._weights_in or self._saved is None

    def activate(self, *, in_use: bool) -> bool:
        """Bring the engine's memory to the device if it is away. `PoolMemory` comes only if `in_use` (the engine has
        requests). Return whether `SavedMemory` came. Raises NoRoomError, or RuntimeError if this took too long."""
        if self._all_in or not (self._saved is not None or in_use):
            return False
        took_ns = self._move(lambda: self._memory.bring(self._page.lease().kv_budget_tokens), away=False)
        self._weights_in = self._all_in = True
        self._page.set(Party.ROLLOUT, Field.AWAY_SINCE_NS, 0)
        if took_ns > ACTIVATION_NS_MAX:
            raise RuntimeError(
                f"moving the engine's memory to the device took {took_ns / 1e9:.1f} s, more than "
                f"{ACTIVATION_NS_MAX / 1e9:.0f} s: set coserving.activation to resident, or use a smaller model"
            )
        return self._saved is not None

    def deactivate(self) -> None:
        """Release the memory of an idle engine without a lease."""
        saved = self._saved
        if not (self._weights_in or self._all_in) or (
            saved is not None and (not saved.releasable or self._weights_needed())
        ):
            return
        self._move(self._memory.give_back, away=True, weights_alone=not self._all_in)
        self._weights_in = self._all_in = False
        if saved is not None:
            self._page.set(Party.ROLLOUT, Field.AWAY_SINCE_NS, monotonic_ns())

    def bring_weights(self) -> str | None:
        """Bring the weights to the device, for a sync. Return why that is impossible, or None."""
        if not self._weights_in and (saved := self._saved) is not None:
            try:
                self._move(lambda: saved.bring(weights_alone=True), away=False, weights_alone=True)
            except NoRoomError as error:
                return f"the weights are not on the device: {error}"
            self._weights_in = True
        return None

    def _move(self, act: Callable[[], int], *, away: bool, weights_alone: bool = False) -> int:
        page, began = self._page, monotonic_ns()
        page.close_span(Party.ROLLOUT, began)
        page.open_span(Party.ROLLOUT, Span.ACTIVATION, began)
        moved_bytes = 0
        try:
            moved_bytes = max(0, act())
        finally:
            ended = monotonic_ns()
            page.close_span(Party.ROLLOUT, ended, aux=Move(moved_bytes, away, weights_alone).to_aux())
        return ended - began


def _free_bytes() -> int:
    import torch

    free: int = torch.cuda.mem_get_info()[0]
    return free
