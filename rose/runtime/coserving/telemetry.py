"""Reads the facts the policy needs out of an SGLang scheduler and writes them to the arbiter page.

The only module that knows SGLang's scheduler by its attribute names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.policy.steptime import StepTimes

_ARRIVAL = "_rose_arrival_ns"
_LAST_TOKEN = "_rose_last_token_ns"


class EngineTelemetry:
    """One engine's section of the page: what waits, what runs, how long the next step takes, spans of work."""

    def __init__(self, scheduler: Any, page: ArbiterPage, party: Party, kind: Span) -> None:
        self._scheduler = scheduler
        self._page = page
        self._party = party
        self._kind = kind
        self._steps_in_flight = 0
        self._previous_end_ns = 0
        self.times = StepTimes.unknown()
        page.set(party, Field.KV_TOKENS_TOTAL, int(scheduler.max_total_num_tokens))

    @property
    def has_work(self) -> bool:
        scheduler = self._scheduler
        return bool(
            scheduler.waiting_queue
            or scheduler.chunked_req is not None
            or not scheduler.running_batch.is_empty()
            or (scheduler.last_batch is not None and not scheduler.last_batch.is_empty())
        )

    @property
    def only_aborted(self) -> bool:
        """Whether everything that runs was aborted: SGLang lets such requests go in one more step, and not before."""
        scheduler = self._scheduler
        reqs = scheduler.collect_inflight_reqs()
        return bool(reqs) and not scheduler.waiting_queue and all(req.to_finish for req in reqs)

    def kv_tokens_used(self) -> int:
        """KV slots held by requests; what only the prefix cache holds can be evicted and does not count."""
        scheduler = self._scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        return int(scheduler.max_total_num_tokens) - int(free)

    def next_step_ns(self, prefill_chunk_tokens: int) -> int:
        """Predicted time of this engine's next step: a prefill if anything waits, else a decode."""
        scheduler = self._scheduler
        waiting = scheduler.waiting_queue
        if waiting:
            tokens = sum(len(req.origin_input_ids) for req in waiting)
            return self.times.prefill_ns(min(tokens, prefill_chunk_tokens))
        reqs = scheduler.running_batch.reqs
        return self.times.decode_ns(len(reqs), sum(_context(req) for req in reqs))

    def begin_step(self, now_ns: int) -> None:
        self._steps_in_flight += 1
        if self._steps_in_flight == 1:
            self._page.open_span(self._party, self._kind, now_ns)
        self._page.set(self._party, Field.IN_STEP_SINCE_NS, now_ns)

    def end_step(self, batch: Any, began_ns: int) -> None:
        """A step's result is known: close its span, learn its length, publish the load."""
        now = monotonic_ns()
        for req in batch.reqs:
            setattr(req, _LAST_TOKEN, now)
        self._steps_in_flight -= 1
        if self._steps_in_flight == 0:
            self._page.set(self._party, Field.IN_STEP_SINCE_NS, 0)
            self._page.close_span(self._party, now, aux=len(batch.reqs))
        # With overlapped scheduling a step begins before its predecessor ended: count only its own time.
        duration_ns = now - max(began_ns, self._previous_end_ns)
        self._previous_end_ns = now
        if batch.forward_mode.is_decode():
            self.times = self.times.observe_decode(
                len(batch.reqs), sum(_context(req) for req in batch.reqs), duration_ns
            )
        elif batch.forward_mode.is_extend() and batch.extend_num_tokens:
            self.times = self.times.observe_prefill(int(batch.extend_num_tokens), duration_ns)
        self.publish(batch.reqs)

    def publish(self, just_stepped: Sequence[Any] = ()) -> None:
        """Write the load that the other engine's admission and the agent's watch depend on.

        `just_stepped` are the requests of a step that the scheduler has not put back among the running ones yet.
        """
        scheduler, page, party = self._scheduler, self._page, self._party
        now = monotonic_ns()
        waiting = scheduler.waiting_queue
        for req in waiting:
            if not hasattr(req, _ARRIVAL):
                setattr(req, _ARRIVAL, now)
        # A finished request stays in its batch until the next one is made; it waits for nothing.
        reqs = [req for req in {*scheduler.collect_inflight_reqs(), *just_stepped} if not req.finished()]
        tokens = sum(len(req.origin_input_ids) for req in waiting)
        page.set(party, Field.WAITING_PREFILL_NS, self.times.prefill_ns(tokens) if waiting else 0)
        page.set(party, Field.EARLIEST_ARRIVAL_NS, min((getattr(req, _ARRIVAL) for req in waiting), default=0))
        page.set(party, Field.OLDEST_TOKEN_NS, min((getattr(req, _LAST_TOKEN, now) for req in reqs), default=0))
        page.set(party, Field.DECODE_NS, self.times.decode_ns(len(reqs), sum(_context(req) for req in reqs)))
        page.set(
            party,
            Field.LARGEST_PREFILL_NS,
            self.times.prefill_ns(page.get(Party.AGENT, Field.MAX_PROMPT_TOKENS)),
        )
        page.set(party, Field.KV_TOKENS_USED, self.kv_tokens_used())
        page.set(party, Field.WAITING, len(waiting))
        page.set(party, Field.RUNNING, len(reqs))


def _context(req: Any) -> int:
    return len(req.origin_input_ids) + len(req.output_ids)
