"""What stands for an engine in the stage `gate`: a stack of layers, and as much of a scheduler as ROSE looks at."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import torch

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.scheduler import SchedulerView

#: Room for everything: memory plays no part in this stage.
KV_TOKENS = 100_000
#: More than may be queued at a time in any mode.
_ENDS_KEPT = 8
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Layers of two matrix products, hidden to inner and back. Tokens come in multiples of `grain`, at most `most`."""

    layers: int
    hidden: int
    inner: int
    grain: int
    most: int


#: All layers of a stack read the same 0.5 GB of weights, ten times what a card's cache holds.
_GPU_SHAPE = Shape(layers=32, hidden=4096, inner=32768, grain=64, most=8192)
_CPU_SHAPE = Shape(layers=12, hidden=256, inner=1024, grain=8, most=1024)


class _Layer(torch.nn.Module):
    def __init__(self, norm: torch.nn.RMSNorm, up: torch.nn.Linear, down: torch.nn.Linear) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm, up, down

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = value + self.down(torch.nn.functional.silu(self.up(self.norm(value))))
        return added


class Stack(torch.nn.Module):
    """Transformer-like layers on a device, in bf16 on a GPU; call `size` before `step`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.shape = shape = _GPU_SHAPE if device.type == "cuda" else _CPU_SHAPE
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        torch.manual_seed(0)
        place: Any = {"device": device, "dtype": self._dtype}
        up, down = (
            torch.nn.Linear(shape.hidden, shape.inner, **place),
            torch.nn.Linear(shape.inner, shape.hidden, **place),
        )
        norm = torch.nn.RMSNorm(shape.hidden, **place)
        self.layers = torch.nn.ModuleList(_Layer(norm, up, down) for _ in range(shape.layers))
        self.requires_grad_(False)
        self._tokens = torch.zeros(0)

    def size(self, layer_ns: int) -> None:
        """Take as many tokens a step as make a layer take about `layer_ns`."""
        grain, most = self.shape.grain, self.shape.most
        few, many = grain, 16 * grain
        few_ns, many_ns = self._layer_ns(few), self._layer_ns(many)
        grains = round((layer_ns - few_ns) * (many - few) / max(many_ns - few_ns, 1.0) / grain)
        self._set_tokens(min(max(few + grains * grain, grain), most))

    def _layer_ns(self, tokens: int) -> float:
        """Return what a layer takes: the quickest of a few steps, the first one left out."""
        self._set_tokens(tokens)
        self.step()
        times = []
        for _ in range(_REPEATS):
            began_ns = time.perf_counter_ns()
            self.step()
            times.append(time.perf_counter_ns() - began_ns)
        return min(times) / self.shape.layers

    def _set_tokens(self, tokens: int) -> None:
        self._tokens = torch.randn(tokens, self.shape.hidden, device=self.device, dtype=self._dtype)

    def step(self) -> None:
        """Compute one step, done when this returns."""
        with torch.inference_mode():
            value = self._tokens
            for layer in self.layers:
                value = layer(value)
        if self.device.type == "cuda":
            torch.cuda.current_stream().synchronize()


class LayerEnds:
    """When the last few layers ended, on the device's own clock where it has one."""

    def __init__(self, device: torch.device) -> None:
        self.on_cores = device.type == "cpu"
        self._events: deque[Any] = deque(maxlen=_ENDS_KEPT)
        self._ended_ns: deque[int] = deque(maxlen=_ENDS_KEPT)
        self._marker: Any = None if self.on_cores else _event()

    def note(self) -> None:
        """Record that the layer that was launched last ends here."""
        if self.on_cores:
            self._ended_ns.append(monotonic_ns())
            return
        event = self._events.popleft() if len(self._events) == _ENDS_KEPT else _event()
        event.record()
        self._events.append(event)

    def unfinished(self, wish_ns: int) -> int:
        """Return how many layers a GPU has not finished; on cores, how many ended after `wish_ns`."""
        if self.on_cores:
            return sum(ended_ns > wish_ns for ended_ns in self._ended_ns)
        return sum(not event.query() for event in self._events)

    def ended_ns(self) -> list[int]:
        """Return the last ends, monotonic, in order; waits until a GPU has finished them."""
        if self.on_cores:
            return list(self._ended_ns)
        self._marker.record()
        self._marker.synchronize()
        now_ns = monotonic_ns()
        return [now_ns - round(event.elapsed_time(self._marker) * 1e6) for event in self._events]


def _event() -> Any:
    create: Callable[..., Any] = torch.cuda.Event
    return create(enable_timing=True)


# ------------------------------------------------------------------ the scheduler


class Request:
    """A request of `steps` tokens, one a step, the first of them a prefill; None: it never ends by itself."""

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
    """The requests of one step, all in a prefill or all in a decode."""

    reqs: list[Request]
    mode: Literal["decode", "extend"]
    forward_iter: int = 0
    batch_is_full: bool = False

    @property
    def extend_num_tokens(self) -> int:
        """Prompt tokens of a prefill."""
        return sum(len(request.origin_input_ids) for request in self.reqs)

    @property
    def forward_mode(self) -> SimpleNamespace:
        """SGLang's mode object."""
        return SimpleNamespace(is_decode=lambda: self.mode == "decode", is_extend=lambda: self.mode == "extend")


@dataclass
class Scheduler:
    """State under SGLang's names."""

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
        """Return the running requests."""
        return set(self.running_batch.reqs)

    def next_batch(self) -> Batch | None:
        """Return the next step's batch: prompts first, then running requests; None without either."""
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
        """Begin a step of this batch."""
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct


class View(SchedulerView):
    """Ends requests without SGLang. `ended` counts them."""

    ended = 0

    def end(self, requests: Sequence[Request], message: str = "Aborted") -> tuple[int, int]:
        """End requests; nobody is answered."""
        for request in requests:
            request.ended = True
        self.ended += len(requests)
        batch = self._scheduler.running_batch
        batch.reqs = [request for request in batch.reqs if not request.ended]
        return len(requests), 0

    def evict(self, tokens: int) -> None:
        """Do nothing: there is no prefix cache."""
