"""Keeps a KV pool at fixed addresses, so that its memory can be returned while tensors and graphs stay valid. Before a
block's memory is returned, its slots are taken out of SGLang's allocator."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from rose.clock import monotonic_ns
from rose.runtime.coserving.kv.activation import NoRoomError
from rose.runtime.coserving.kv.device_memory import CudaMemory, DriverError, Reservation
from rose.runtime.coserving.kv.host_memory import HostMemory, PieceMemory
from rose.runtime.coserving.kv.kv_blocks import Blocks, block_slots, runs

logger = logging.getLogger(__name__)

REMAP_VARIABLE = "ROSE_KV_REMAP"  #: `1` in an engine's environment puts its KV pool into memory that can be returned.
SPARE_BYTES = 512 << 20  # stays free on a GPU, for torch and the other engine's driver
_AGAIN_NS = 20_000_000  #: The wait before a device is asked again for memory that it did not have.
_BUFFERS = "_rose_buffers"


class KvBuffers:
    """One tensor for each layer. Its halves are the layer's keys and values, as in SGLang. `shape` is the shape of one
    slot's keys. The constructor maps all blocks. Raises NoRoomError or DriverError."""

    def __init__(
        self, memory: PieceMemory, *, slots: int, layers: int, shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        row_bytes = prod(shape) * dtype.itemsize
        self.memory = memory
        self.blocks = Blocks(slots, block_slots([row_bytes], memory.granularity, slots))
        self.block_bytes = 2 * row_bytes * self.blocks.block * layers
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._reservations: list[Reservation] = []
        count, block = self.blocks.count, self.blocks.block
        try:
            for _ in range(layers):
                self._reservations.append(Reservation(memory, 2 * count, row_bytes * block))
                halves = self._reservations[-1].tensor((2, count * block, *shape), dtype)
                self.keys.append(halves[0, : slots + 1])
                self.values.append(halves[1, : slots + 1])
            self.map(range(count))
        except BaseException:
            self.close()
            raise

    @property
    def mapped_bytes(self) -> int:
        return sum(reservation.mapped_bytes for reservation in self._reservations)

    def map(self, numbers: Sequence[int]) -> None:
        """Map zeroed memory for all of these blocks, or for none. Raises NoRoomError or DriverError."""
        done: list[tuple[Reservation, int, int]] = []
        try:
            for begin, end in runs(numbers):
                for reservation, first in self._halves():
                    reservation.map(first + begin, first + end)
                    done.append((reservation, first + begin, first + end))
        except BaseException:
            for reservation, begin, end in done:
                reservation.unmap(begin, end)
            raise
        for begin, end in runs(numbers):
            for buffer in (*self.keys, *self.values):
                buffer[begin * self.blocks.block : end * self.blocks.block].zero_()
        self.blocks.mapped.update(numbers)

    def unmap(self, numbers: Sequence[int]) -> int:
        """Give the memory of these blocks back to the device. Return its size in bytes. Raises DriverError."""
        before = self.mapped_bytes
        self.blocks.mapped.difference_update(numbers)
        for begin, end in runs(numbers):
            for reservation, first in self._halves():
                reservation.unmap(first + begin, first + end)
        return before - self.mapped_bytes

    def close(self) -> None:
        for reservation in self._reservations:
            reservation.close()
        self._reservations.clear()

    def _halves(self) -> list[tuple[Reservation, int]]:
        """Return (reservation, index of the first piece) for the keys and for the values of each layer."""
        return [(one, first) for one in self._reservations for first in (0, self.blocks.count)]


class RemappedPages:
    mechanism = "remap"

    def __init__(self, scheduler: Any, buffers: KvBuffers) -> None:
        self._scheduler, self._buffers = scheduler, buffers
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._spare_bytes = 0 if buffers.memory.device.type == "cpu" else SPARE_BYTES
        self._settled_slots = buffers.blocks.slots
        self._refused_ns = 0
        _withhold(self._allocator, self)

    @classmethod
    def of(cls, scheduler: Any) -> RemappedPages | None:
        """Return the pool's memory, or None if the pool was not made by `create_buffers`."""
        allocator = scheduler.token_to_kv_pool_allocator
        buffers = getattr(allocator.get_kvcache(), _BUFFERS, None)
        return cls(scheduler, buffers) if buffers is not None and type(allocator).__name__ in _ALLOCATORS else None

    @property
    def withheld_slots(self) -> int:
        blocks = self._buffers.blocks
        return blocks.slots - blocks.mapped_slots

    def grow(self, tokens: int) -> int:
        blocks = self._buffers.blocks
        wanted = blocks.to_map(tokens)
        if wanted and monotonic_ns() - self._refused_ns > _AGAIN_NS:
            room = max(0, self._buffers.memory.free_bytes() - self._spare_bytes) // self._buffers.block_bytes
            chosen = wanted[:room]
            try:
                self._buffers.map(chosen)
            except NoRoomError as error:
                logger.info("ROSE waits for memory: %s", error)
                chosen = []
            if len(chosen) < len(wanted):
                self._refused_ns = monotonic_ns()
            if chosen:
                free = torch.cat((self._allocator.free_pages, self._allocator.release_pages)).cpu().numpy()
                self._set_free(np.sort(np.concatenate((free, blocks.slots_within(chosen)))))
        usable = blocks.mapped_slots
        self._settled_slots = max(self._settled_slots, min(tokens, usable))
        return tokens if usable == blocks.slots else min(tokens, usable)

    def bring(self, tokens: int) -> int:
        before = self._buffers.mapped_bytes
        self.grow(tokens)
        return self._buffers.mapped_bytes - before

    def surplus(self, tokens: int) -> bool:
        return tokens < self._settled_slots

    def give_back(self, keep_tokens: int = 0) -> int:
        allocator, blocks = self._allocator, self._buffers.blocks
        self._settled_slots = min(keep_tokens, blocks.slots)
        free = np.sort(torch.cat((allocator.free_pages, allocator.release_pages)).cpu().numpy())
        if not (numbers := blocks.to_unmap(free, keep_tokens)):
            return 0
        # The allocator loses them first. It hands out the lowest slots first, so high blocks become free.
        self._set_free(free[~np.isin(free // blocks.block, numbers)])
        return self._buffers.unmap(numbers)

    def make_room(self, tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        cache = self._scheduler.tree_cache
        if cached := int(cache.evictable_size()):
            cache.evict(EvictParams(num_tokens=min(tokens, cached)))
        if tokens > cached:
            self.grow(self._buffers.blocks.mapped_slots + tokens - cached)

    def mapped_only(self, free: torch.Tensor) -> torch.Tensor:
        blocks = self._buffers.blocks
        usable = torch.zeros(blocks.count, dtype=torch.bool)
        usable[sorted(blocks.mapped)] = True
        return free[usable.to(free.device)[free // blocks.block]]

    def _set_free(self, slots: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        allocator = self._allocator
        kept = torch.from_numpy(slots.astype(np.int64))
        allocator.free_pages = kept.to(device=allocator.free_pages.device, dtype=allocator.free_pages.dtype)
        allocator.release_pages = allocator.release_pages[:0]


_ALLOCATORS = ("TokenToKVPoolAllocator",)  # SGLang's allocators of single slots that can be made to withhold some


def _withhold(allocator: Any, pages: RemappedPages) -> None:
    base = type(allocator)

    class WithholdingAllocator(base):  # type: ignore[misc, valid-type]
        def available_size(self) -> int:
            return int(super().available_size()) + pages.withheld_slots

        def alloc(self, need_size: int) -> Any:
            short = need_size - int(super().available_size())
            if short > 0:
                pages.make_room(short)
            return super().alloc(need_size)

        def clear(self) -> None:
            super().clear()
            self.free_pages: torch.Tensor = pages.mapped_only(self.free_pages)

    allocator.__class__ = WithholdingAllocator


def create_buffers(original: Any, pool: Any, *_args: Any) -> Any:
    """Create the pool's buffers as `KvBuffers`, or log why that is impossible and create SGLang's buffers."""
    if (refused := _refusal(pool)) is None:
        try:
            device = torch.device(pool.device)
            memory = HostMemory() if device.type == "cpu" else CudaMemory(device)
            rows, *shape = pool._kv_buffer_shapes()[0]
            buffers = KvBuffers(memory, slots=rows - 1, layers=pool.layer_num, shape=shape, dtype=pool.store_dtype)
        except (DriverError, NoRoomError) as error:
            refused = str(error)
        else:
            pool.k_buffer, pool.v_buffer = buffers.keys, buffers.values
            setattr(pool, _BUFFERS, buffers)
            logger.info("ROSE can move this KV pool in blocks of %d slots", buffers.blocks.block)
            return None
    logger.warning("ROSE cannot move this KV pool: %s", refused)
    return original(pool)


def is_requested() -> bool:
    return os.environ.get(REMAP_VARIABLE) == "1"


def _refusal(pool: Any) -> str | None:
    if type(pool).__name__ != "MHATokenToKVPool" or pool.kv_cache_layout != "nhd":
        return f"it is a {type(pool).__name__} of layout {getattr(pool, 'kv_cache_layout', 'unknown')}"
    key_shape, value_shape = pool._kv_buffer_shapes()
    if key_shape != value_shape:
        return f"its keys have the shape {key_shape}, and its values {value_shape}"
    if pool.page_size != 1:
        return f"it has pages of {pool.page_size} slots; --page-size 1 is needed"
    if pool.enable_custom_mem_pool or pool.memory_saver_adapter.enabled:
        return "another allocator has its memory: coserving.activation must be 'resident'"
    return None
