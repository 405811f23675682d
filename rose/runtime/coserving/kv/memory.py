"""Keeps two engines within one budget of KV memory, from inside the rollout engine."""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rose.clock import monotonic_ns
from rose.runtime.coserving.kv.activation import Activation
from rose.runtime.coserving.kv.kv_blocks import runs
from rose.runtime.coserving.page import ArbiterPage, CutRecord, Field, Party
from rose.runtime.coserving.scheduler import SchedulerView
from rose.runtime.platform import placement
from rose.runtime.policy.kv import retraction_order, under_pressure
from rose.runtime.policy.policies import Policy, numbered
from rose.runtime.policy.slack import LeaseTerms

if TYPE_CHECKING:
    from rose.runtime.coserving.kv.remap import RemappedPages

#: A pool's returnable memory, used by the scheduler's thread between two steps.
PoolMemory: TypeAlias = "KvPages | RemappedPages"
_MADV_DONTNEED = 4
CUT_WAIT_NS = 50_000_000  #: Serving's longest wait for a cut, once in a lease: a rollout layer, and the cut.
_CUT_POLL_S = 0.0005


class KvGuard:
    """Keeps a rollout engine within its budget of KV slots. `pages` and `activation`, if given, move its memory."""

    def __init__(
        self, page: ArbiterPage, view: SchedulerView, pages: PoolMemory | None, activation: Activation | None = None
    ) -> None:
        self._page, self._view, self._pages, self._activation = page, view, pages, activation
        self.budget_tokens = 0  #: Rollouts' limit, 0 without a lease.
        self._lease_number = 0
        self._cut_lease = 0  # the lease that was cut, and its budget then
        self._cut_tokens = 0
        self._cuts = 0
        self.pressed_since_ns = 0
        self._emptied = False

    @property
    def withheld_tokens(self) -> int:
        return max(0, self._view.kv_tokens_total - self.budget_tokens)

    def pressed(self, policy: Policy) -> bool:
        """Return whether memory is under pressure and this lease's budget can still be cut."""
        if self._pages is None or not policy.guards or self._cut_lease == self._lease_number or self.budget_tokens == 0:
            return False
        memory = self._page.memory()
        if memory is None or not under_pressure(memory):
            self.pressed_since_ns = 0
            return False
        serving_ns = self._page.get(Party.SERVING, Field.PRESSED_SINCE_NS)
        self.pressed_since_ns = serving_ns or self.pressed_since_ns or monotonic_ns()
        return True

    def enforce(self, lease: LeaseTerms, policy: Policy, now_ns: int) -> bool:
        """Keep the engine within its lease. Called between two steps. Return False if memory was moved: then the caller
        must read the lease again, because the lease may have changed meanwhile."""
        lent = lease.expires_ns > now_ns
        if lent and self._activation is not None and self._activation.activate(in_use=self._view.has_work):
            return False
        self._lease_number = lease.number
        granted = lease.kv_budget_tokens if lent else 0
        cut = lent and self._cut_lease == lease.number
        self.budget_tokens = lasting = min(granted, self._cut_tokens) if cut else granted
        if self._pages is not None and lent and self._view.has_work:
            self.budget_tokens = self._pages.grow(lasting)
        if lent:
            self._emptied = False
            if not lease.frozen and self.pressed(policy):
                self._cut(lease)
            else:
                self._retract_until(self.budget_tokens, lasting)
                if self._pages is not None and self._pages.surplus(self.budget_tokens):
                    self._give_back(self.budget_tokens)  # the budget shrank without a cut
        elif not self._view.has_work:
            if not self._emptied:  # Nothing is lent: serving has the memory, the prefix cache's included.
                self._view.evict(self._view.kv_tokens_cached())
                self._emptied = True
            if self._activation is not None:
                self._activation.deactivate()
        return True

    def _cut(self, lease: LeaseTerms) -> None:
        began = monotonic_ns()
        before = self.budget_tokens
        after = before // 2
        self._cut_lease, self._cut_tokens, self.budget_tokens = lease.number, after, after
        # If serving stops waiting before the end, the idle class would leave the rest undone until serving rests.
        idle_threads = placement.leave_idle_class()
        try:
            requests, kept = self._retract_until(after, after)
            returned = self._give_back(after)
        finally:
            placement.enter_idle_class(idle_threads)
        self._page.set(Party.ROLLOUT, Field.KV_TOKENS_USED, self._view.kv_tokens_used())
        self._cuts += 1
        done = monotonic_ns()
        worked_ns = self._page.get(Party.ROLLOUT, Field.WORKED_NS)
        self._page.set(Party.ROLLOUT, Field.WORKED_NS, worked_ns + done - began)
        self._page.set_cut(
            CutRecord(
                count=self._cuts,
                lease_number=lease.number,
                at_ns=done,
                tokens_before=before,
                tokens_after=after,
                requests=requests,
                tokens_kept=kept,
                took_ns=done - (self.pressed_since_ns or done),
                bytes_returned=returned,
            )
        )
        self.pressed_since_ns = 0

    def _retract_until(self, budget_tokens: int, lasting_tokens: int) -> tuple[int, int]:
        """End the youngest requests until the others fit in `budget_tokens`, the present budget. If only waiting
        requests remain, and the first of them does not fit in `lasting_tokens`, end it: this lease's budget will stay
        within `lasting_tokens`. Return (ended requests, number of their tokens kept in the prefix cache)."""
        ended = kept = 0
        view = self._view
        order = iter(retraction_order(view.held()))
        while view.kv_tokens_used() and view.kv_tokens_used() + len(view.running) > budget_tokens:
            if (youngest := next(order, None)) is None:
                break
            requests, tokens = view.end_ids([youngest])
            ended, kept = ended + requests, kept + tokens
        if view.waiting and not view.running:
            first = view.waiting[0]
            wanted = len(first.origin_input_ids) + int(first.sampling_params.max_new_tokens)
            if wanted + 1 >= min(lasting_tokens, view.kv_tokens_total):
                requests, tokens = view.end([first])
                ended, kept = ended + requests, kept + tokens
        return ended, kept

    def _give_back(self, keep_tokens: int) -> int:
        self._view.evict(self._view.kv_tokens_used() + self._view.kv_tokens_cached() - keep_tokens)
        return 0 if self._pages is None else self._pages.give_back(keep_tokens)


class KvClaim:
    """Reports serving's memory pressure on the page. On CPU cores, serving then waits a moment, because the rollout
    engine can cut its KV budget only while serving does not compute."""

    def __init__(self, page: ArbiterPage) -> None:
        self._page = page
        self._lease = LeaseTerms()
        self._pressed = False
        self._waited_lease = 0

    def look(self, lease: LeaseTerms, now_ns: int) -> None:
        self._lease = lease
        memory = self._page.memory() if lease.expires_ns > now_ns and numbered(lease.policy).guards else None
        pressed = memory is not None and under_pressure(memory)
        if pressed != self._pressed:
            self._pressed = pressed
            self._page.set(Party.SERVING, Field.PRESSED_SINCE_NS, now_ns if pressed else 0)

    @property
    def due(self) -> bool:
        return (
            self._pressed
            and bool(self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE))
            and not self._lease.frozen
            and self._waited_lease != self._lease.number
            and self._page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) > 0
            and not self._was_cut()
            and self._page.alive(Party.ROLLOUT)
        )

    def wait(self) -> None:
        """Wait until rollouts' budget is cut, at most for `CUT_WAIT_NS`. Serving waits at most once per lease."""
        self._waited_lease = self._lease.number
        began = now = monotonic_ns()
        while now - began < CUT_WAIT_NS and not self._was_cut():
            time.sleep(_CUT_POLL_S)
            now = monotonic_ns()
        page = self._page
        page.set(Party.SERVING, Field.CUT_WAIT_NS, page.get(Party.SERVING, Field.CUT_WAIT_NS) + now - began)

    def _was_cut(self) -> bool:
        cut = self._page.cut()
        return cut is not None and cut.lease_number == self._lease.number


class KvPages:
    """The KV pool of a CPU engine. Free memory pages go back to the system and then contain zeros, which is safe
    because SGLang writes each slot before reading it."""

    mechanism = "page-return"

    def __init__(self, scheduler: Any) -> None:
        self._allocator = scheduler.token_to_kv_pool_allocator
        pool = self._allocator.get_kvcache()
        self._buffers = [*pool.k_buffer, *pool.v_buffer]
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

    @classmethod
    def of_cpu(cls, scheduler: Any) -> KvPages | None:
        """Return the pool's memory, or None if the pool is not plain host memory."""
        pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
        buffers = getattr(pool, "k_buffer", None) or []
        plain = any(buffer.device.type == "cpu" and buffer.is_contiguous() for buffer in buffers[:1])
        return cls(scheduler) if plain and scheduler.page_size == 1 else None

    def bring(self, tokens: int) -> int:
        return 0

    def grow(self, tokens: int) -> int:
        return tokens

    def surplus(self, tokens: int) -> bool:
        return False

    def give_back(self, keep_tokens: int = 0) -> int:
        """Give free pages back to the system. Return how many bytes of memory this freed."""
        resident = self._resident_bytes()
        free = np.concatenate([self._allocator.free_pages.numpy(), self._allocator.release_pages.numpy()])
        begins, ends = np.array(runs(free), np.int64).reshape(-1, 2).T
        for buffer in self._buffers:
            row_bytes = buffer.stride(0) * buffer.element_size()
            low = -(-(buffer.data_ptr() + begins * row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
            high = (buffer.data_ptr() + ends * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            whole = high > low
            for address, length in zip(low[whole].tolist(), (high - low)[whole].tolist(), strict=True):
                self._libc.madvise(address, length, _MADV_DONTNEED)
        return resident - self._resident_bytes()

    def _resident_bytes(self) -> int:
        pages = 0
        for buffer in self._buffers:
            low = buffer.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            high = buffer.data_ptr() + buffer.nbytes
            resident = np.zeros(-(-(high - low) // mmap.PAGESIZE), dtype=np.uint8)
            if self._libc.mincore(low, high - low, resident.ctypes.data) == 0:
                pages += int(np.count_nonzero(resident & 1))
        return pages * mmap.PAGESIZE
