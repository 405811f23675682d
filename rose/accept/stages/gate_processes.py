"""The processes of the stages `gate` and `beside`. Page, plugin and gate are the product's; the rest is simplified."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.gate import RolloutGate, RunAhead, add_layer_hooks
from rose.runtime.coserving.hooks.serving import ServingPlugin
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.scheduler import SchedulerView, StepAbandonedError
from rose.runtime.policy.credit import FACTOR_GUESSED

PROMPT_TOKENS = 256
#: Times of a layer of serving and of rollouts: a decode is shorter than a prefill.
_LAYER_NS = {"cuda": (400_000, 250_000), "cpu": (800_000, 400_000)}
_ROLLOUT_REQUESTS = 8
_WARM_UP_REQUESTS = 4
_WARM_UP_STEPS = 4
SETTLING_NS = 250_000_000  # Serving steps in this time do not count: after a pause a card's clocks rise slowly.
_IDLE_S = 0.05
KV_TOKENS = 100_000  # More than needed: memory plays no part in this stage.
_ENDS_KEPT = 8
_WISH_STEPS_KEPT = 4
_WISH_EVERY = 8  # Steps of a busy serving between arrivals.
_WISH_READ_AFTER = 3  # Steps after which the layers that followed a wish have ended.
_FULL_SPEED = 1.25  # A layer that takes at most so many times its time alone is at full speed.
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    hidden: int
    inner: int
    grain: int
    most: int


#: All layers read the same 0.5 GB of weights, ten times a card's cache.
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
    """Layers like those of a transformer, in bf16 on a GPU. Call `size` before `step`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.shape = shape = _GPU_SHAPE if device.type == "cuda" else _CPU_SHAPE
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        torch.manual_seed(0)
        place: Any = {"device": device, "dtype": self._dtype}
        up = torch.nn.Linear(shape.hidden, shape.inner, **place)
        down = torch.nn.Linear(shape.inner, shape.hidden, **place)
        norm = torch.nn.RMSNorm(shape.hidden, **place)
        self.layers = torch.nn.ModuleList(_Layer(norm, up, down) for _ in range(shape.layers))
        self.requires_grad_(False)
        self._tokens = torch.zeros(0)

    def size(self, layer_ns: int) -> None:
        grain, most = self.shape.grain, self.shape.most
        few, many = grain, 16 * grain
        few_ns, many_ns = self._layer_ns(few), self._layer_ns(many)
        grains = round((layer_ns - few_ns) * (many - few) / max(many_ns - few_ns, 1.0) / grain)
        self._set_tokens(min(max(few + grains * grain, grain), most))

    def _layer_ns(self, tokens: int) -> float:
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
        if (done := self.launch()) is not None:
            done.synchronize()

    def launch(self) -> Any:
        """Start a step. On a GPU, queue the step and return its end event. On CPU cores, compute it and return None."""
        with torch.inference_mode():
            value = self._tokens
            for layer in self.layers:
                value = layer(value)
        if self.device.type == "cpu":
            return None
        done = _event()
        done.record()
        return done


class LayerEnds:
    def __init__(self, device: torch.device, kept: int = _ENDS_KEPT) -> None:
        self.on_cores = device.type == "cpu"
        self._events: deque[Any] = deque(maxlen=kept)
        self._ended_ns: deque[int] = deque(maxlen=kept)
        self._marker: Any = None if self.on_cores else _event()

    def note(self) -> None:
        if self.on_cores:
            self._ended_ns.append(monotonic_ns())
            return
        event = self._events.popleft() if len(self._events) == self._events.maxlen else _event()
        event.record()
        self._events.append(event)

    def unfinished(self, wish_ns: int) -> int:
        """Return how many layers the GPU has not finished. On CPU cores, return how many ended after `wish_ns`."""
        if self.on_cores:
            return sum(ended_ns > wish_ns for ended_ns in self._ended_ns)
        return sum(not event.query() for event in self._events)

    def ended_ns(self) -> list[int]:
        """Return when the last `kept` layers ended (monotonic ns). On a GPU, wait until they have ended."""
        if self.on_cores:
            return list(self._ended_ns)
        self._marker.record()
        self._marker.synchronize()
        now_ns = monotonic_ns()
        return [now_ns - round(event.elapsed_time(self._marker) * 1e6) for event in self._events]


def _event() -> Any:
    create: Callable[..., Any] = torch.cuda.Event
    return create(enable_timing=True)


class Request:
    def __init__(self, rid: str, prompt_tokens: int, steps: int | None = None, arrived_ns: int = 0) -> None:
        self.rid = rid
        self.origin_input_ids = range(prompt_tokens)
        self.output_ids: list[int] = []
        self.steps = steps
        self.arrived_ns = arrived_ns
        self.ended = False
        self.priority = self.to_finish = None
        self.sampling_params = SimpleNamespace(max_new_tokens=steps or 0)
        stamp_s = arrived_ns / 1e9
        self.time_stats = SimpleNamespace(created_time=stamp_s, api_server_dispatch_time=stamp_s)

    def finished(self) -> bool:
        return self.ended or (self.steps is not None and len(self.output_ids) >= self.steps)


@dataclass(slots=True)
class Batch:
    reqs: list[Request]
    mode: Literal["decode", "extend"]
    forward_iter: int = 0
    batch_is_full: bool = False

    @property
    def extend_lens(self) -> list[int]:
        return [len(request.origin_input_ids) for request in self.reqs]

    @property
    def prefix_lens(self) -> list[int]:
        return [0] * len(self.reqs)

    @property
    def extend_num_tokens(self) -> int:
        return sum(self.extend_lens)

    @property
    def forward_mode(self) -> SimpleNamespace:
        return SimpleNamespace(is_decode=lambda: self.mode == "decode", is_extend=lambda: self.mode == "extend")


class Scheduler:
    def __init__(self) -> None:
        self.max_total_num_tokens = KV_TOKENS
        self.waiting_queue: list[Request] = []
        self.chunked_req = None
        self.running_batch = Batch([], "decode")
        self.forward_ct = 0
        self.server_args = SimpleNamespace(served_model_name="layers", model_path="layers")
        self.tree_cache = SimpleNamespace(evictable_size=lambda: 0)
        self.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: KV_TOKENS)

    def collect_inflight_reqs(self) -> set[Request]:
        return set(self.running_batch.reqs)

    def next_batch(self) -> Batch | None:
        self.running_batch.reqs = [request for request in self.running_batch.reqs if not request.finished()]
        if self.waiting_queue:
            batch = Batch(self.waiting_queue, "extend")
            self.running_batch.reqs, self.waiting_queue = [*self.running_batch.reqs, *batch.reqs], []
            return batch
        return Batch(list(self.running_batch.reqs), "decode") if self.running_batch.reqs else None

    def count(self, batch: Batch) -> None:
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct


class View(SchedulerView):
    ended = 0

    def end(self, requests: Sequence[Request], message: str = "Aborted") -> tuple[int, int]:
        for request in requests:
            request.ended = True
        self.ended += len(requests)
        batch = self._scheduler.running_batch
        batch.reqs = [request for request in batch.reqs if not request.ended]
        return len(requests), 0

    def evict(self, tokens: int) -> None:
        """Do nothing, because there is no prefix cache."""


class Step(NamedTuple):
    """A serving step, in monotonic ns. It is due once its request has arrived and the previous step has ended."""

    due_ns: int
    begin_ns: int
    end_ns: int


class Yield(NamedTuple):
    on_device: int
    left: int


class BusyStep(NamedTuple):
    """A step that begins as soon as the previous step ends. `length_ns` is the time from the end of the previous
    step to the end of this step. `work_ns` is the work of rollouts in that time."""

    length_ns: int
    work_ns: int


class Wish(NamedTuple):
    """How fast serving got the device back after a wish. `full_speed_ns`: the time until a layer of serving ran at
    full speed. `delay_ns`: how late the layers of the next half step ended."""

    full_speed_ns: int
    delay_ns: int


def after_wish(ends_ns: Sequence[int], wish_ns: int, layers: int, step_ns: int) -> Wish:
    after, layer_ns = [pair for pair in pairwise(ends_ns) if pair[1] > wish_ns], step_ns / layers
    full_ns = next((begin for begin, end in after if end - begin <= _FULL_SPEED * layer_ns), ends_ns[-1])
    half = after[: max(1, layers // 2)]
    return Wish(max(0, full_ns - wish_ns), max(0, round(half[-1][1] - wish_ns - len(half) * layer_ns)))


class Ready(NamedTuple):
    layers: int
    step_ns: int


class RolledOut(NamedTuple):
    steps: int
    yields: tuple[Yield, ...]
    ended: int


def make_party(_: Connection, name: str, device: str, page: Path, core: int | None) -> Serving | RollingOut | Stack:
    # The gate, not an MPS daemon of the host, shares the device.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(page.with_name("no-mps"))
    torch.set_num_threads(1)
    if core is not None:
        os.sched_setaffinity(0, {core})
    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if name == "third":
        return Stack(place)
    return Serving(place, page) if name == "serving" else RollingOut(place, page)


class Serving:
    def __init__(self, device: torch.device, page: Path) -> None:
        self._stack = Stack(device)
        self._scheduler = Scheduler()
        self._plugin = ServingPlugin(self._scheduler, page, None)
        self._page = ArbiterPage(page)  # The plugin is its writer, but for credit that the stage sets.
        self._ends: LayerEnds | None = None  # None: no measurement of layers' ends.
        self._step_ns = self._wish_ns = 0
        add_layer_hooks(self._stack, self._note_layer)

    def _note_layer(self, _layers_left: int) -> None:
        if self._ends is not None:
            self._ends.note()

    def start(self) -> Ready:
        self._stack.size(_LAYER_NS[self._stack.device.type][0])
        now_ns = monotonic_ns()
        # One after another: the plugin learns from several prefills.
        steps = [step for _ in range(_WARM_UP_REQUESTS) for step in self.play(((now_ns, _WARM_UP_STEPS),), now_ns)]
        if self._plugin.state.reason is not None:
            raise RuntimeError(f"serving's plugin cannot use the arbiter page: {self._plugin.state.reason}")
        lengths = sorted(step.end_ns - step.begin_ns for step in steps)
        self._step_ns = lengths[len(lengths) // 4]
        return Ready(self._stack.shape.layers, self._step_ns)

    def play(self, arrivals: tuple[tuple[int, int], ...], until_ns: int) -> tuple[Step, ...]:
        queue, steps = deque(arrivals), list[Step]()
        launched, previous_end_ns = deque[tuple[Batch, Any]](), 0
        while True:
            now_ns = monotonic_ns()
            while queue and queue[0][0] <= min(now_ns, until_ns):
                at_ns, count = queue.popleft()
                self._scheduler.waiting_queue.append(Request("serving", PROMPT_TOKENS, count, at_ns))
            begin_ns = monotonic_ns()
            if not self._launch(launched):
                if now_ns >= until_ns:
                    return tuple(steps)
                next_ns = min(queue[0][0], until_ns) if queue else until_ns
                time.sleep(min(_IDLE_S, max(0.0, (next_ns - monotonic_ns()) / 1e9)))
                continue
            batch = launched[0][0]
            arrived_ns = min(r.arrived_ns for r in batch.reqs) if batch.mode == "extend" else 0
            end_ns = self._await(launched, None)
            steps.append(Step(max(arrived_ns, previous_end_ns), begin_ns, end_ns))
            previous_end_ns = end_ns

    def play_busy(
        self, from_ns: int, until_ns: int, work_ns: int | None, wishes: bool
    ) -> tuple[list[BusyStep], list[Wish]]:
        """Run decode steps without pauses. Beside each step, rollouts get credit for `work_ns` of work (None: the
        policy decides). If `wishes`, a request arrives every few steps; return a Wish for each request."""
        layers, launched = self._stack.shape.layers, deque[tuple[Batch, Any]]()
        self._ends = LayerEnds(self._stack.device, _WISH_STEPS_KEPT * layers) if wishes else None
        time.sleep(max(0.0, (from_ns - monotonic_ns()) / 1e9))
        endless = Request("endless", PROMPT_TOKENS, None, from_ns)
        self._scheduler.waiting_queue.append(endless)
        steps, seen, read_at = list[BusyStep](), list[Wish](), -1
        ended_ns = worked_ns = 0
        while launched or not endless.ended:
            if self._launch(launched) and len(launched) == 1:
                continue
            last_ns, last_worked_ns = ended_ns, worked_ns
            ended_ns, worked_ns = self._await(launched, work_ns), self._page.get(Party.ROLLOUT, Field.WORK_NS)
            endless.ended = ended_ns >= until_ns
            if last_ns < from_ns + SETTLING_NS:
                continue
            steps.append(BusyStep(ended_ns - last_ns, worked_ns - last_worked_ns))
            if self._ends is not None and len(steps) == read_at:
                seen.append(after_wish(self._ends.ended_ns(), self._wish_ns, layers, self._step_ns))
            if wishes and len(steps) % _WISH_EVERY == 0 and ended_ns + _WISH_EVERY * self._step_ns < until_ns:
                read_at = len(steps) + _WISH_READ_AFTER
                threading.Timer(self._step_ns / 2e9, self._arrive).start()
        return steps, seen

    def _launch(self, launched: deque[tuple[Batch, Any]]) -> bool:
        self._plugin.received()
        if (batch := self._scheduler.next_batch()) is None:
            return False
        self._plugin.begin(batch)
        self._scheduler.count(batch)
        launched.append((batch, self._stack.launch()))
        return True

    def _await(self, launched: deque[tuple[Batch, Any]], work_ns: int | None) -> int:
        """Wait for the oldest step in `launched`. Return its end (monotonic ns). If the next step is a decode step,
        give rollouts credit for `work_ns` beside it (None: the policy gives credit)."""
        batch, done = launched.popleft()
        if done is not None:
            done.synchronize()
        end_ns = monotonic_ns()
        for request in batch.reqs:
            request.output_ids.append(0)
        self._plugin.end(batch)
        if work_ns is not None and launched and launched[0][0].mode == "decode" and not self._scheduler.waiting_queue:
            until_ns = monotonic_ns() + round(2 * (self._step_ns + FACTOR_GUESSED * work_ns))
            self._page.set(Party.SERVING, Field.CREDIT_UNTIL_NS, until_ns)
            self._page.set(Party.SERVING, Field.CREDIT_NS, self._page.get(Party.ROLLOUT, Field.WORK_NS) + work_ns)
        return end_ns

    def _arrive(self) -> None:
        self._wish_ns = monotonic_ns()
        self._scheduler.waiting_queue.append(Request("arrival", PROMPT_TOKENS, 1, self._wish_ns))
        self._plugin.received()


class WatchedPage(ArbiterPage):
    ends: LayerEnds

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.yields: list[Yield] = []
        self._wish_ns = self._on_device = 0

    def serving_wants(self) -> int:
        wish_ns = super().serving_wants()
        if wish_ns and wish_ns != self._wish_ns:
            self._wish_ns, self._on_device = wish_ns, self.ends.unfinished(wish_ns)
        return wish_ns

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        super().open_span(party, kind, start_ns)
        if kind is Span.YIELD:
            left = 0 if self.ends.on_cores else self.ends.unfinished(self._wish_ns)
            self.yields.append(Yield(self._on_device, left))


class RollingOut:
    def __init__(self, device: torch.device, page: Path) -> None:
        self._stack = Stack(device)
        self._path = page
        self._gate: RolloutGate | None = None

    def start(self) -> Ready:
        stack = self._stack
        stack.size(_LAYER_NS[stack.device.type][1])
        add_layer_hooks(stack, self._before_layer, after_last=stack.device.type == "cpu")
        page = WatchedPage.attach(self._path, Party.ROLLOUT)
        assert isinstance(page, WatchedPage), "attached as its own class"
        self._page = page
        self._page.ends = LayerEnds(stack.device)
        self._scheduler = Scheduler()
        self._view = View(self._scheduler)
        self._telemetry = RolloutTelemetry(self._view, self._page)
        times_ns = []
        for _ in range(_WARM_UP_STEPS):
            began_ns = monotonic_ns()
            stack.step()
            times_ns.append(monotonic_ns() - began_ns)
        return Ready(stack.shape.layers, min(times_ns))

    def play(self, from_ns: int, until_ns: int) -> RolledOut:
        """Run steps in [from_ns, until_ns). A step that is unfinished at the end does not count."""
        page, view, telemetry, scheduler = self._page, self._view, self._telemetry, self._scheduler
        gate = RolloutGate(
            page,
            view,
            telemetry,
            KvGuard(page, view, None),
            chunk_tokens=512,
            set_chunk_tokens=lambda _tokens: None,
            layers=self._stack.shape.layers,
            run_ahead=RunAhead() if self._stack.device.type == "cuda" else None,
            on_preemptible=lambda: None,
        )
        page.yields, view.ended = [], 0
        steps = 0

        def over() -> bool:
            return monotonic_ns() >= until_ns

        time.sleep(max(0.0, (from_ns - monotonic_ns()) / 1e9))
        while not over():
            if not scheduler.running_batch.reqs:
                requests = [Request(f"rollout-{index}", PROMPT_TOKENS) for index in range(_ROLLOUT_REQUESTS)]
                scheduler.running_batch.reqs = requests
            gate.before_step(over, lambda: None)
            if over() or not scheduler.running_batch.reqs:
                continue
            number, began_ns = view.steps + 1, monotonic_ns()
            gate.step_begins()
            telemetry.begin(number)
            batch = scheduler.next_batch()
            assert batch is not None, "its requests never end"
            scheduler.count(batch)
            self._gate = gate
            try:
                self._stack.step()
            except StepAbandonedError:
                telemetry.forget(number)
            else:
                gate.step_ended(began_ns)
                telemetry.end(number, batch)
                steps += not over()
            finally:
                self._gate = None
            telemetry.say()
        return RolledOut(steps, tuple(page.yields), view.ended)

    def _before_layer(self, layers_left: int) -> None:
        if self._gate is not None:  # None: sizing or warm-up.
            self._page.ends.note()
            self._gate.between_layers(layers_left)
