"""The two processes on the device: one serves requests of a few steps, the other rolls out without pause.

Each is told over a pipe what to do, and answers. What coordinates them is the product's: the page, the plugin of a
serving engine, the gate of a rollout engine.
"""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from rose.accept.gate.layers import LayerEnds, Stack
from rose.accept.gate.messages import (
    PROMPT_TOKENS,
    START,
    Arrival,
    Failed,
    Ready,
    RolledOut,
    RollOut,
    Serve,
    Setting,
    Step,
    Yield,
)
from rose.accept.gate.scheduler import Request, Scheduler, View
from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.gate import RolloutGate, RunAhead, add_layer_hooks
from rose.runtime.coserving.hooks.scheduler import StepAbandonedError
from rose.runtime.coserving.hooks.serving import ServingPlugin
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord

#: Rollout layers are shorter than serving's, as a decode's are beside a prefill's.
_LAYER_NS = {"cuda": (400_000, 250_000), "cpu": (800_000, 400_000)}
_ROLLOUT_REQUESTS = 8
_WARM_UP_REQUESTS = 4
_WARM_UP_STEPS = 4
#: An idle engine looks at least so often for what has come.
_IDLE_S = 0.05


def serve(connection: Connection, setting: Setting) -> None:
    """The serving process."""
    _run(connection, setting, _Serving)


def roll_out(connection: Connection, setting: Setting) -> None:
    """The rollout process."""
    _run(connection, setting, _RollingOut)


def _run(connection: Connection, setting: Setting, party: Callable[[Setting], _Serving | _RollingOut]) -> None:
    os.environ.update(setting.environment)
    torch.set_num_threads(1)
    if setting.core is not None:
        os.sched_setaffinity(0, {setting.core})
    try:
        engine = party(setting)
        if setting.at_once:
            engine.load()
        while (command := connection.recv()) is not None:
            if command == START:
                engine.load()
                connection.send(engine.start())
            else:
                connection.send(engine.play(command))
    except EOFError:
        return
    except Exception as error:
        traceback.print_exc()
        connection.send(Failed(f"{type(error).__name__}: {error}", isinstance(error, ImportError)))


class _Party:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._loaded: Stack | None = None

    @property
    def _stack(self) -> Stack:
        assert self._loaded is not None, "loaded before"
        return self._loaded

    def load(self) -> None:
        """Make the layers on the device, unless they are there."""
        if self._loaded is None:
            device = torch.device(self._setting.device)
            if device.type == "cuda":
                torch.cuda.set_device(device)
            self._loaded = Stack(device)
            self._loaded.layer_ns(self._loaded.shape.grain)  # What is set up lazily.


class _Serving(_Party):
    """An engine with the product's plugin in it, turn by turn as SGLang's loop."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._scheduler = Scheduler()
        self._plugin = ServingPlugin(self._scheduler, setting.page, None)

    def start(self) -> Ready:
        """Take the page, and learn what steps take."""
        stack = self._stack
        tokens = stack.size(_LAYER_NS[stack.device.type][0])
        now = monotonic_ns()
        arrivals = (Arrival(now, _WARM_UP_STEPS),) * _WARM_UP_REQUESTS
        # One after another, so that there are prefills enough to learn from.
        steps = [step for arrival in arrivals for step in self._play((arrival,), now)]
        if self._plugin.state.reason is not None:
            raise RuntimeError(f"the plugin did not take the page: {self._plugin.state.reason}")
        lengths = sorted(step.end_ns - step.begin_ns for step in steps)
        return Ready(layers=stack.shape.layers, tokens=tokens, step_ns=lengths[len(lengths) // 4])

    def play(self, command: Serve) -> tuple[Step, ...]:
        """Every step that ran."""
        return tuple(self._play(command.arrivals, command.until_ns))

    def _play(self, arrivals: tuple[Arrival, ...], until_ns: int) -> list[Step]:
        scheduler, plugin = self._scheduler, self._plugin
        queue, steps = deque(arrivals), list[Step]()
        previous_end_ns = 0
        while True:
            now = monotonic_ns()
            while queue and queue[0].at_ns <= min(now, until_ns):
                arrival = queue.popleft()
                request = Request("serving", PROMPT_TOKENS, arrival.steps, arrival.at_ns)
                scheduler.waiting_queue.append(request)
            plugin.received()
            batch = scheduler.next_batch()
            if batch is None:
                if now >= until_ns:
                    return steps
                coming_ns = min(queue[0].at_ns, until_ns) if queue else until_ns
                time.sleep(min(_IDLE_S, max(0.0, (coming_ns - monotonic_ns()) / 1e9)))
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
    """The rollout engine's page, which also keeps what the device still had to do whenever the gate gave way."""

    ends: LayerEnds | None = None

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.yields: list[Yield] = []
        self.taken = 0
        self._wish_ns = self._on_device = 0
        self._given: tuple[int, int, int] | None = None

    def serving_wants(self) -> int:
        wish_ns = super().serving_wants()
        if wish_ns and wish_ns != self._wish_ns and self.ends is not None:
            self._wish_ns, self._on_device = wish_ns, self.ends.unfinished(wish_ns)
        return wish_ns

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        super().open_span(party, kind, start_ns)
        if self.ends is None:
            return
        if kind is Span.YIELD:
            left = 0 if self.ends.on_cores else self.ends.unfinished(self._wish_ns)
            self._given = (self._wish_ns, self._on_device, left)
        elif self._given is not None:
            # Serving is done with the device: to ask it for times disturbs nobody.
            (wish_ns, on_device, left), self._given = self._given, None
            after_ns = [end_ns - wish_ns for end_ns in self.ends.ended_ns() if end_ns > wish_ns]
            self.yields.append(Yield(on_device, left, len(after_ns), max(after_ns, default=0)))

    def write_span(self, party: Party, record: SpanRecord) -> None:
        super().write_span(party, record)
        # One between layers is closed; what is written whole is the kernel's.
        announced = self.get(party, Field.OPEN_SINCE_NS) == record.start_ns
        self.taken += record.kind is Span.YIELD and not announced


class _RollingOut(_Party):
    """An engine that always has requests, behind the product's gate."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._gate: RolloutGate | None = None
        self._hook: Callable[[int], None] = self._before_layer
        if setting.graph:
            self._hook = _ends_a_segment(self._before_layer)

    def start(self) -> Ready:
        """Take the page, and add the gate to the layers."""
        stack = self._stack
        tokens = stack.size(_LAYER_NS[stack.device.type][1])
        add_layer_hooks(stack, self._hook, after_last=stack.device.type == "cpu")
        if self._setting.graph:
            stack.capture()
        page = WatchedPage.attach(self._setting.page, Party.ROLLOUT)
        assert isinstance(page, WatchedPage), "attached as what it was called on"
        self._page = page
        self._page.ends = LayerEnds(stack.device)
        self._scheduler = Scheduler()
        self._view = View(self._scheduler)
        self._telemetry = RolloutTelemetry(self._view, self._page)
        self._guard = KvGuard(self._page, self._view, None)
        step_ns = round(min(self._timed_step_ns() for _ in range(_WARM_UP_STEPS)))
        return Ready(layers=stack.shape.layers, tokens=tokens, step_ns=step_ns)

    def _timed_step_ns(self) -> int:
        began = monotonic_ns()
        self._stack.step(graph=self._setting.graph)
        return monotonic_ns() - began

    def play(self, command: RollOut) -> RolledOut:
        """Steps until the time is over; one that is half done then is left out."""
        self._set_class(command.idle_class)
        gate = self._gate_of(command.layers_ahead)
        page, view, telemetry, scheduler = self._page, self._view, self._telemetry, self._scheduler
        page.yields, page.taken, view.ended = [], 0, 0
        steps = abandoned = 0

        def over() -> bool:
            return monotonic_ns() >= command.until_ns

        time.sleep(max(0.0, (command.from_ns - monotonic_ns()) / 1e9))
        while not over():
            if not scheduler.running_batch.reqs:
                scheduler.running_batch.reqs = [
                    Request(f"rollout-{index}", PROMPT_TOKENS) for index in range(_ROLLOUT_REQUESTS)
                ]
            gate.before_step(over, lambda: None)
            if over() or not scheduler.running_batch.reqs:
                continue
            number, began = view.steps + 1, monotonic_ns()
            gate.step_begins()
            telemetry.begin(number)
            batch = scheduler.next_batch()
            assert batch is not None, "its requests go on for ever"
            scheduler.count(batch)
            self._gate = gate
            try:
                self._stack.step(graph=self._setting.graph)
            except StepAbandonedError:
                abandoned += 1
                telemetry.forget(number)
            else:
                gate.step_ended(began)
                telemetry.end(number, batch)
                steps += not over()
            finally:
                self._gate = None
            telemetry.say()
        return RolledOut(
            steps=steps, yields=tuple(page.yields), taken=page.taken, abandoned=abandoned, ended=view.ended
        )

    def _gate_of(self, layers_ahead: int) -> RolloutGate:
        return RolloutGate(
            self._page,
            self._view,
            self._telemetry,
            self._guard,
            chunk_tokens=512,
            set_chunk_tokens=lambda _tokens: None,
            layers=self._stack.shape.layers,
            run_ahead=RunAhead(layers_ahead) if self._stack.device.type == "cuda" else None,
            on_preemptible=lambda: None,
        )

    def _set_class(self, idle: bool) -> None:
        wanted = os.SCHED_IDLE if idle else os.SCHED_OTHER
        if os.sched_getscheduler(0) != wanted:
            os.sched_setscheduler(0, wanted, os.sched_param(0))

    def _before_layer(self, layers_left: int) -> None:
        # Without a gate the stack is sized, warmed up or captured.
        if self._gate is None:
            return
        assert self._page.ends is not None, "set when the page was taken"
        self._page.ends.note()
        self._gate.between_layers(layers_left)


def _ends_a_segment(before_layer: Callable[[int], None]) -> Callable[[int], None]:
    """Raises ImportError where SGLang, whose capture it is, cannot be loaded."""
    from rose.runtime.engines import gpu

    # Capture needs none of SGLang's kernels.
    os.environ.setdefault(gpu.NATIVE_KERNELS, "1")
    try:
        gpu.install()
        from rose.runtime.coserving.hooks.gate import before_each_layer

        return before_each_layer(before_layer)
    except Exception as error:
        raise ImportError(f"SGLang's breakable capture cannot be loaded ({type(error).__name__}: {error})")
