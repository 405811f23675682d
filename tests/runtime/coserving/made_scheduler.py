"""A scheduler without SGLang."""

from collections import deque
from dataclasses import dataclass, field, replace
from types import SimpleNamespace


class Request:
    def __init__(self, rid, prompt=10, *, new_tokens=4, priority=None):
        self.priority = priority
        self.rid, self.origin_input_ids, self.output_ids = rid, [1] * prompt, []
        self.sampling_params = SimpleNamespace(max_new_tokens=new_tokens)
        self.to_finish = None
        self.time_stats = SimpleNamespace(created_time=0.0, api_server_dispatch_time=0.0)
        self.extra_key = None
        self.ended = False

    def finished(self):
        return self.ended


@dataclass
class Batch:
    """An overlapped loop hands a `copy` to `process_batch_result`."""

    reqs: list
    mode: str
    forward_iter: int = 0
    extend_num_tokens: int = 0
    batch_is_full: bool = False
    prefix_lens: list = field(default_factory=list)
    extend_lens: list = field(default_factory=list)

    @property
    def forward_mode(self):
        return SimpleNamespace(is_decode=lambda: self.mode == "decode", is_extend=lambda: self.mode == "extend")

    def is_empty(self):
        return not self.reqs

    def copy(self):
        return replace(self, reqs=list(self.reqs))


@dataclass
class Scheduler:
    max_total_num_tokens: int = 1000
    waiting_queue: list = field(default_factory=list)
    chunked_req: object = None
    running_batch: Batch = field(default_factory=lambda: Batch([], "decode"))
    last_batch: object = None
    forward_ct: int = 0
    held: int = 0
    cached: int = 0
    full: bool = False  # No request is admitted.

    def __post_init__(self):
        self.tree_cache = SimpleNamespace(evictable_size=lambda: self.cached)
        self.token_to_kv_pool_allocator = SimpleNamespace(
            available_size=lambda: self.max_total_num_tokens - self.held - self.cached
        )
        self.server_args = SimpleNamespace(served_model_name="made-up", model_path="made-up")

    def collect_inflight_reqs(self):
        batches = [batch for batch in (self.running_batch, self.last_batch) if batch is not None]
        return {request for batch in batches for request in batch.reqs}


class Loop:
    """With `overlap`, a step begins before the previous result is processed."""

    def __init__(self, scheduler, plugin, *, overlap, work=lambda: None):
        self.scheduler, self.plugin, self.overlap, self.work = scheduler, plugin, overlap, work
        self.results, self.launched = deque(), None

    def turn(self):
        scheduler = self.scheduler
        self.plugin.received()
        batch = self.launched = self._next()
        if batch is not None:
            self.plugin.begin(batch)
            scheduler.forward_ct += 1
            batch.forward_iter = scheduler.forward_ct
            self.work()
            self.plugin.launched(batch)
            self.results.append(batch.copy() if self.overlap else batch)
        ahead = 1 if self.overlap and batch is not None else 0
        while len(self.results) > ahead:
            self._process(self.results.popleft())
        scheduler.last_batch = batch

    def _next(self):
        scheduler = self.scheduler
        if scheduler.last_batch is not None and scheduler.last_batch.mode == "extend":
            scheduler.running_batch.reqs += scheduler.last_batch.reqs
        scheduler.running_batch.reqs = [request for request in scheduler.running_batch.reqs if not request.ended]
        if scheduler.waiting_queue and not scheduler.full:
            requests, scheduler.waiting_queue = scheduler.waiting_queue, []
            lengths = [len(request.origin_input_ids) for request in requests]
            return Batch(
                requests, "extend", extend_num_tokens=sum(lengths), extend_lens=lengths, prefix_lens=[0] * len(lengths)
            )
        return scheduler.running_batch if scheduler.running_batch.reqs else None

    def _process(self, batch):
        for request in batch.reqs:
            if not request.ended:
                request.output_ids.append(7)
                request.ended = len(request.output_ids) >= request.sampling_params.max_new_tokens
        self.plugin.end(batch)
