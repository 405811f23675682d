"""As much of SGLang's scheduler as ROSE looks at, for engines whose steps are layers and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Literal

from rose.runtime.coserving.hooks.scheduler import SchedulerView

KV_TOKENS = 100_000


class Request:
    """`steps` of it give a token each, the first of them a prefill; None: it goes on for ever."""

    def __init__(self, rid: str, prompt_tokens: int, steps: int | None = None, arrived_ns: int = 0) -> None:
        self.rid = rid
        self.origin_input_ids = range(prompt_tokens)
        self.output_ids: list[int] = []
        self.steps = steps
        self.arrived_ns = arrived_ns
        self.ended = False
        self.to_finish = None
        self.sampling_params = SimpleNamespace(max_new_tokens=steps or 0)
        stamp_s = arrived_ns / 1e9
        self.time_stats = SimpleNamespace(created_time=stamp_s, api_server_dispatch_time=stamp_s)

    def finished(self) -> bool:
        """Whether it has all of its tokens, or was ended."""
        return self.ended or (self.steps is not None and len(self.output_ids) >= self.steps)


@dataclass(slots=True)
class Batch:
    """One step's requests, all in a prefill or all in a decode."""

    reqs: list[Request]
    mode: Literal["decode", "extend"]
    forward_iter: int = 0
    batch_is_full: bool = False

    @property
    def extend_num_tokens(self) -> int:
        """Prompt tokens, of a prefill."""
        return sum(len(request.origin_input_ids) for request in self.reqs)

    @property
    def forward_mode(self) -> SimpleNamespace:
        """As SGLang has it."""
        return SimpleNamespace(is_decode=lambda: self.mode == "decode", is_extend=lambda: self.mode == "extend")


@dataclass
class Scheduler:
    """State under SGLang's names. KV memory plays no part here: nothing is ever held."""

    max_total_num_tokens: int = KV_TOKENS
    waiting_queue: list[Request] = field(default_factory=list)
    chunked_req: None = None
    running_batch: Batch = field(default_factory=lambda: Batch([], "decode"))
    forward_ct: int = 0
    server_args: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(served_model_name="layers", model_path="layers")
    )

    def __post_init__(self) -> None:
        self.tree_cache = SimpleNamespace(evictable_size=lambda: 0)
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: self.max_total_num_tokens)

    def collect_inflight_reqs(self) -> set[Request]:
        """Those that run."""
        return set(self.running_batch.reqs)

    def next_batch(self) -> Batch | None:
        """What the next step does: prompts first, then what runs; None if there is neither."""
        self.running_batch.reqs = [request for request in self.running_batch.reqs if not request.finished()]
        if self.waiting_queue:
            batch = Batch(self.waiting_queue, "extend")
            self.running_batch.reqs, self.waiting_queue = [*self.running_batch.reqs, *batch.reqs], []
        elif self.running_batch.reqs:
            batch = Batch(list(self.running_batch.reqs), "decode")
        else:
            return None
        return batch

    def count(self, batch: Batch) -> None:
        """A step of this batch begins."""
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct


class View(SchedulerView):
    """Ends requests without SGLang. `ended` counts them."""

    ended = 0

    def end(self, requests: Sequence[Request], message: str = "Aborted") -> tuple[int, int]:
        """As SGLang would, but that nobody is answered."""
        for request in requests:
            request.ended = True
        self.ended += len(requests)
        batch = self._scheduler.running_batch
        batch.reqs = [request for request in batch.reqs if not request.ended]
        return len(requests), 0

    def evict(self, tokens: int) -> None:
        """There is no prefix cache."""
