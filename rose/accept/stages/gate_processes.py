"""The two processes of the stage `gate`: one serves requests of a few steps, the other rolls out without pause.

What coordinates them is the product's: the page, the plugin of a serving engine and the gate of a rollout engine.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from rose.accept.stages.gate_engine import LayerEnds, Request, Scheduler, Stack, View
from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.gate import RolloutGate, RunAhead, add_layer_hooks
from rose.runtime.coserving.hooks.scheduler import StepAbandonedError
from rose.runtime.coserving.hooks.serving import ServingPlugin
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.page import ArbiterPage, Party, Span

#: Prompt of every serving request, and the most that the page promises room for.
PROMPT_TOKENS = 256
#: Rollout layers are shorter than serving's, as a decode's are beside a prefill's.
_LAYER_NS = {"cuda": (400_000, 250_000), "cpu": (800_000, 400_000)}
_ROLLOUT_REQUESTS = 8
_WARM_UP_REQUESTS = 4
_WARM_UP_STEPS = 4
#: An idle engine looks at least this often for new requests.
_IDLE_S = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    """A serving step: due when its request had come and the step before it had ended. Monotonic nanoseconds."""

    due_ns: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Yield:
    """A rollout step that gave way between two layers.

    `on_device`: layers that the device had not finished when the gate saw the wish; `left`: when the gate said that the
    device was free. The last layer ended `free_ns` after the wish.
    """

    on_device: int
    left: int
    free_ns: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Layers of a step, and what a step takes with the device to itself."""

    layers: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class RolledOut:
    """Rollout steps of a round, those that were abandoned for serving, and requests that were sent elsewhere."""

    steps: int
    yields: tuple[Yield, ...]
    abandoned: int
    ended: int


def make_party(_: Connection, name: str, device: str, page: Path, core: int | None) -> Serving | RollingOut:
    """Return the party of this name (`serving` or `rollout`), its layers on the device."""
    # An MPS daemon of the host would share the device otherwise than the gate does.
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(page.with_name("no-mps"))
    torch.set_num_threads(1)
    if core is not None:
        os.sched_setaffinity(0, {core})
    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    return Serving(place, page) if name == "serving" else RollingOut(place, page)


class Serving:
    """An engine with the product's plugin in it, turn by turn as SGLang's loop."""

    def __init__(self, device: torch.device, page: Path) -> None:
        self._stack = Stack(device)
        self._scheduler = Scheduler()
        self._plugin = ServingPlugin(self._scheduler, page, None)

    def start(self) -> Ready:
        """Take the page, and learn what steps take."""
        self._stack.size(_LAYER_NS[self._stack.device.type][0])
        now_ns = monotonic_ns()
        # One after another, so that there are prefills enough to learn from.
        steps = [step for _ in range(_WARM_UP_REQUESTS) for step in self.play(((now_ns, _WARM_UP_STEPS),), now_ns)]
        if self._plugin.state.reason is not None:
            raise RuntimeError(f"the plugin did not take the page: {self._plugin.state.reason}")
        lengths = sorted(step.end_ns - step.begin_ns for step in steps)
        return Ready(self._stack.shape.layers, lengths[len(lengths) // 4])

    def play(self, arrivals: tuple[tuple[int, int], ...], until_ns: int) -> tuple[Step, ...]:
        """Serve (arrival time, steps); none is begun after `until_ns`. Returns every step."""
        scheduler, plugin = self._scheduler, self._plugin
        queue, steps = deque(arrivals), list[Step]()
        previous_end_ns = 0
        while True:
            now_ns = monotonic_ns()
            while queue and queue[0][0] <= min(now_ns, until_ns):
                at_ns, count = queue.popleft()
                scheduler.waiting_queue.append(Request("serving", PROMPT_TOKENS, count, at_ns))
            plugin.received()
            batch = scheduler.next_batch()
            if batch is None:
                if now_ns >= until_ns:
                    return tuple(steps)
                next_ns = min(queue[0][0], until_ns) if queue else until_ns
                time.sleep(min(_IDLE_S, max(0.0, (next_ns - monotonic_ns()) / 1e9)))
                continue
            arrived_ns = min(r.arrived_ns for r in batch.reqs) if batch.mode == "extend" else 0
            plugin.begin()
            scheduler.count(batch)
            begin_ns = monotonic_ns()
            self._stack.step()
            end_ns = monotonic_ns()
            for request in batch.reqs:
                request.output_ids.append(0)
            plugin.end(batch)
            steps.append(Step(max(arrived_ns, previous_end_ns), begin_ns, end_ns))
            previous_end_ns = end_ns


class WatchedPage(ArbiterPage):
    """The rollout engine's page; it also keeps what the device still had to do whenever the gate gave way."""

    ends: LayerEnds

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.yields: list[Yield] = []
        self._wish_ns = self._on_device = 0
        self._given: tuple[int, int, int] | None = None

    def serving_wants(self) -> int:
        wish_ns = super().serving_wants()
        if wish_ns and wish_ns != self._wish_ns:
            self._wish_ns, self._on_device = wish_ns, self.ends.unfinished(wish_ns)
        return wish_ns

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        super().open_span(party, kind, start_ns)
        if kind is Span.YIELD:
            left = 0 if self.ends.on_cores else self.ends.unfinished(self._wish_ns)
            self._given = (self._wish_ns, self._on_device, left)
        elif self._given is not None:
            # Serving is done with the device: asking it for times disturbs nobody.
            (wish_ns, on_device, left), self._given = self._given, None
            free_ns = max((end_ns - wish_ns for end_ns in self.ends.ended_ns()), default=0)
            self.yields.append(Yield(on_device, left, max(0, free_ns)))


class RollingOut:
    """An engine that always has requests, behind the product's gate."""

    def __init__(self, device: torch.device, page: Path) -> None:
        self._stack = Stack(device)
        self._path = page
        self._gate: RolloutGate | None = None

    def start(self) -> Ready:
        """Take the page, and add the gate to the layers."""
        stack = self._stack
        stack.size(_LAYER_NS[stack.device.type][1])
        add_layer_hooks(stack, self._before_layer, after_last=stack.device.type == "cpu")
        page = WatchedPage.attach(self._path, Party.ROLLOUT)
        assert isinstance(page, WatchedPage), "attached as the class it was called on"
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
        """Run steps in [from_ns, until_ns); a step that is unfinished then does not count."""
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
        steps = abandoned = 0

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
                abandoned += 1
                telemetry.forget(number)
            else:
                gate.step_ended(began_ns)
                telemetry.end(number, batch)
                steps += not over()
            finally:
                self._gate = None
            telemetry.say()
        return RolledOut(steps, tuple(page.yields), abandoned, view.ended)

    def _before_layer(self, layers_left: int) -> None:
        if self._gate is not None:  # Else the stack is sized or warmed up.
            self._page.ends.note()
            self._gate.between_layers(layers_left)
