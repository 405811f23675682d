"""ROSE's view of SGLang's scheduler. Only this module knows the scheduler's attributes."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rose.clock import monotonic_ns
from rose.runtime.coserving.continuation import made_before
from rose.runtime.coserving.page import Finish
from rose.runtime.coserving.questions import client_id
from rose.runtime.policy.steptime import attended

_ARRIVED = "_rose_arrived_ns"  #: The attribute that keeps when a request came.
_STAMP_AGE_MAX_NS = 600_000_000_000
_FINISHES = {"stop": Finish.STOP, "length": Finish.LENGTH, "abort": Finish.ABORT}


class StepAbandonedError(Exception):
    """The step is given up between two layers."""


class SchedulerView:
    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.kv_tokens_total = int(scheduler.max_total_num_tokens)
        self._grammars: Any = None
        #: Whether `run_batch` returns only when the step is computed, as it does on CPU cores.
        self.computes_in_launch = getattr(scheduler, "device", None) == "cpu"
        self.computed_share = 1.0  # recent share of a prompt that was not in the prefix cache

    @property
    def waiting(self) -> list[Any]:
        queue: list[Any] = self._scheduler.waiting_queue
        return queue

    @property
    def knocked(self) -> bool:
        """Return whether a message waits to be received; False if unknown."""
        import zmq

        return self._socket is not None and bool(self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN)

    @property
    def arrivals_file(self) -> int | None:
        """Return a descriptor that any thread may watch. It becomes readable when a message arrives."""
        import zmq

        return None if self._socket is None else int(self._socket.getsockopt(zmq.FD))

    @property
    def _socket(self) -> Any:
        socket = getattr(self._scheduler, "recv_from_tokenizer", None)
        return socket if hasattr(socket, "getsockopt") else None

    def own_compiled(self) -> None:
        """From now on, only `queue_compiled` queues requests with a compiled grammar. SGLang would bypass the gate."""
        self._grammars = self._scheduler.grammar_manager
        self._compiled = self._grammars.get_ready_grammar_requests
        self._grammars.get_ready_grammar_requests = list

    def queue_compiled(self) -> None:
        if self._grammars is not None and self._grammars.has_waiting_grammars():
            for request in self._compiled():
                self._scheduler._add_request_to_queue(request)

    @property
    def running(self) -> list[Any]:
        scheduler = self._scheduler
        chunked = [] if scheduler.chunked_req is None else [scheduler.chunked_req]
        return [request for request in {*scheduler.collect_inflight_reqs(), *chunked} if not request.finished()]

    @property
    def has_work(self) -> bool:
        """Return whether a request is unfinished. Finished requests stay in the batch for one more step."""
        return bool(self._scheduler.waiting_queue) or bool(self.running)

    @property
    def steps(self) -> int:
        return int(self._scheduler.forward_ct)

    def kv_tokens_used(self) -> int:
        """Return how many KV slots requests use, without slots that only the prefix cache holds."""
        free = int(self._scheduler.token_to_kv_pool_allocator.available_size())
        return self.kv_tokens_total - free - self.kv_tokens_cached()

    def kv_tokens_to_come(self) -> int:
        chunked = self._scheduler.chunked_req
        rest = 0 if chunked is None else max(0, context_tokens(chunked) - int(chunked.kv.kv_allocated_len))
        tokens = rest + sum(context_tokens(request) for request in self.waiting)
        return min(tokens, self.kv_tokens_total - self.kv_tokens_used())

    def kv_tokens_cached(self) -> int:
        return int(self._scheduler.tree_cache.evictable_size())

    @property
    def chunked_prefix(self) -> int:
        chunked = self._scheduler.chunked_req
        return 0 if chunked is None else int(chunked.extend_end)

    def next_step(self, chunk_tokens: int) -> tuple[Literal["prefill", "decode"], int, float]:
        """Describe the next step: ("prefill", new tokens, attended pairs) or ("decode", requests, context tokens). A
        pair is a new token and an earlier token that it attends to. A prefill has at most `chunk_tokens` tokens."""
        scheduler = self._scheduler
        if scheduler.chunked_req is not None:
            return "prefill", chunk_tokens, attended(chunk_tokens, self.chunked_prefix)
        if scheduler.waiting_queue and not scheduler.running_batch.batch_is_full:
            prompts = [context_tokens(request) for request in scheduler.waiting_queue]
            tokens = max(1, min(int(sum(prompts) * self.computed_share), chunk_tokens))
            cached = sum(prompts) * (1 - self.computed_share)
            return "prefill", tokens, attended(tokens, cached) / len(prompts)
        requests = self.running
        return "decode", len(requests), sum(context_tokens(request) for request in requests)

    def note_prefill(self, batch: Any) -> None:
        tokens = sum(context_tokens(request) for request in batch.reqs)
        if tokens and self._scheduler.chunked_req is None:
            self.computed_share += 0.2 * (min(1.0, int(batch.extend_num_tokens) / tokens) - self.computed_share)

    def held(self) -> dict[str, int]:
        """Return the arrival time (monotonic ns) of each request that waits or runs, by request id."""
        return {client_id(str(request.rid)): arrived_ns(request) for request in [*self.waiting, *self.running]}

    def end_aborted(self) -> int:
        """End requests that clients have aborted. SGLang would keep them for one more step."""
        return self.end([request for request in self.running if request.to_finish is not None])[0]

    def end_ids(self, request_ids: Iterable[str]) -> tuple[int, int]:
        wanted = set(request_ids)
        return self.end([one for one in [*self.waiting, *self.running] if client_id(str(one.rid)) in wanted])

    def end(self, requests: Sequence[Any], message: str = "Aborted") -> tuple[int, int]:
        """End requests, but keep their tokens in the prefix cache. Return (number of requests, kept tokens)."""
        if not requests:
            return 0, 0
        from sglang.srt.mem_cache.common import release_kv_cache

        scheduler = self._scheduler
        chosen = set(requests)
        scheduler.waiting_queue = [request for request in scheduler.waiting_queue if request not in chosen]
        for request in requests:
            _finish(request, message)
            if request is scheduler.chunked_req:
                scheduler.chunked_req = None
                if request.kv.holds_kv:
                    release_kv_cache(request, scheduler.tree_cache, checkpoint=False)
            elif request.kv.holds_kv:
                release_kv_cache(request, scheduler.tree_cache, checkpoint=True)
        for batch in {id(batch): batch for batch in (scheduler.running_batch, scheduler.last_batch) if batch}.values():
            batch.filter_batch()
            batch.batch_is_full = False
        return self._answer(requests)

    def _answer(self, requests: Sequence[Any]) -> tuple[int, int]:
        scheduler = self._scheduler
        begun = [request for request in requests if request.output_ids]
        if begun:
            scheduler.output_streamer.stream_output(begun, any(request.return_logprob for request in begun))
        from sglang.srt.managers.scheduler import _make_abort_req

        for request in requests:
            if not request.output_ids:
                scheduler._release_aborted_request(request)
                reason = request.finished_reason.to_json()
                scheduler.send_abort_output(_make_abort_req(request, finished_reason=reason), request)
        return len(requests), sum(len(request.output_ids) - made_before(request) for request in requests)

    def abandon(self, batch: Any, *, end: bool) -> tuple[int, int]:
        """Undo a step that ran without the overlap schedule. If `end`, the step's requests end; otherwise they return
        to the queue. Return (number of ended requests, number of their tokens)."""
        from sglang.srt.mem_cache.common import release_kv_cache

        scheduler = self._scheduler
        requests = [request for request in batch.reqs if not request.finished()]
        keeps = batch.forward_mode.is_decode() and scheduler.page_size == 1 and batch.out_cache_loc is not None
        if keeps:
            # Free the slot of the token that was not computed; the slots before it stay cached.
            scheduler.token_to_kv_pool_allocator.free(batch.out_cache_loc)
            for request in requests:
                request.kv.kv_committed_len -= 1
                request.kv.kv_allocated_len -= 1
        for request in requests:
            release_kv_cache(request, scheduler.tree_cache, checkpoint=keeps)
        if scheduler.chunked_req is not None and scheduler.chunked_req in requests:
            scheduler.chunked_req = None
        batch.reqs = []
        batch.batch_is_full = False
        if not end:
            for request in requests:
                request.reset_for_retract()
                scheduler._add_request_to_queue(request, is_retracted=True)
            return 0, 0
        for request in requests:
            _finish(request, "Aborted")
        return self._answer(requests)

    def evict(self, tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        if tokens > 0:
            self._scheduler.tree_cache.evict(EvictParams(num_tokens=tokens))


def _finish(request: Any, message: str) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    request.finished_reason, request.to_finish = request.to_finish or FINISH_ABORT(message), None


def context_tokens(request: Any) -> int:
    return len(request.origin_input_ids) + len(request.output_ids)


def arrived_ns(request: Any) -> int:
    """Return when a request reached the server or, if that is unknown, was first seen here."""
    stamp: int | None = getattr(request, _ARRIVED, None)
    if stamp is None:
        stamp = _stamp_ns(request, "created_time") or monotonic_ns()
        setattr(request, _ARRIVED, stamp)
    return stamp


def handed_ns(request: Any) -> int | None:
    return _stamp_ns(request, "api_server_dispatch_time")


def begun_ns(request: Any) -> int | None:
    return _stamp_ns(request, "forward_entry_time")


def cached_tokens(request: Any) -> int | None:
    return getattr(request, "cached_tokens", None)


def finish_of(request: Any) -> tuple[Finish, int | None]:
    """Return why a request ended and, for an abort, the HTTP status."""
    reason = getattr(request, "finished_reason", None)
    kind = "abort" if reason is None else reason.to_json()["type"]
    status = getattr(reason, "status_code", None)
    return _FINISHES.get(kind, Finish.STOP), None if status is None else int(status)


def abort_status(abort: Any) -> int | None:
    """Return the HTTP status if the server aborted the request, or None if the client did."""
    status = (getattr(abort, "finished_reason", None) or {}).get("status_code")
    return None if status is None else int(status)


def _stamp_ns(request: Any, name: str) -> int | None:
    now, stamp_ns = monotonic_ns(), int(float(getattr(request.time_stats, name, 0.0) or 0.0) * 1e9)
    # Another core's clock may be a little ahead. Another host's clock makes a stamp meaningless.
    return min(stamp_ns, now) if stamp_ns and abs(now - stamp_ns) < _STAMP_AGE_MAX_NS else None
