"""Holds a rollout engine's steps until the policy admits them, and makes steps yield between layers."""

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.beside import BesideServing
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.coserving.scheduler import SchedulerView, StepAbandonedError
from rose.runtime.policy.policies import Policy, numbered
from rose.runtime.policy.slack import CREDIT_LAYERS, Decision, Hold, LeaseTerms, ServingLoad, StepFacts

LAYERS_AHEAD = 2  # one layer that runs and one behind it keep a GPU at work


class RunAhead:
    """Keeps at most `layers` layers queued on the GPU. Without this limit, Python queues a whole step at once."""

    def __init__(self, layers: int = LAYERS_AHEAD) -> None:
        import torch

        self.layers = layers
        self._new_event = torch.cuda.Event
        self._queued: deque[Any] = deque()
        self._free: list[Any] = []

    def before_layer(self) -> None:
        event = self._free.pop() if self._free else self._new_event()  # type: ignore[no-untyped-call]
        event.record()
        self._queued.append(event)
        while len(self._queued) >= self.layers:
            self._wait()

    def drain(self) -> None:
        while self._queued:
            self._wait()

    def _wait(self) -> None:
        event = self._queued.popleft()
        event.synchronize()
        self._free.append(event)


class _CapturingDevice:
    def __init__(self, module: Any) -> None:
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import BreakableCUDAGraph

        self._module = module
        self.captured = BreakableCUDAGraph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def graph(self, *, cuda_graph: Any, pool: Any, stream: Any) -> Any:
        from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph import BreakableCUDAGraphCapture

        return BreakableCUDAGraphCapture(self.captured, pool=pool, stream=stream)


def capture_in_layers(original: Callable[..., Any], backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> None:
    """Capture a graph as SGLang's `FullCudaGraphBackend.capture_one` does, but in one segment per layer."""
    module = backend._device_module
    backend._device_module = device = _CapturingDevice(module)
    try:
        original(backend, shape_key, *args, **kwargs)
    finally:
        backend._device_module = module
    backend._graphs[shape_key] = device.captured


#: How long to sleep between looks at the page: far less than a layer takes.
POLL_CPU_S = 0.0005
POLL_GPU_S = 0.00005
POLL_UNLENT_S = 0.002  #: Without a lease or serving, nothing changes within a step's time.
_SHARE_WINDOW_NS = 1_000_000_000
STALL_NS = 5_000_000_000  # requests that are held for so long continue on another engine, if possible
_TAKEN_MIN_NS = 500_000  #: If the thread's clock stands still for less, that is noise: the core was not taken away.
CHUNK_TOKENS_MIN = 32
CREDIT_LAYERS_OF_CHUNK = 4


class RolloutGate:
    def __init__(
        self,
        page: ArbiterPage,
        view: SchedulerView,
        telemetry: RolloutTelemetry,
        guard: KvGuard,
        *,
        chunk_tokens: int,
        set_chunk_tokens: Callable[[int], None],
        layers: int,
        run_ahead: RunAhead | None,
        on_preemptible: Callable[[], None],
        host_cores: Collection[int] = (),
    ) -> None:
        self._page, self._view, self._telemetry, self._guard = page, view, telemetry, guard
        self._chunk_tokens, self._set_chunk_tokens = chunk_tokens, set_chunk_tokens
        self._on_preemptible = on_preemptible
        self._run_ahead = run_ahead
        self._ahead = 1 if run_ahead is None else run_ahead.layers
        self._poll_s = POLL_CPU_S if run_ahead is None else POLL_GPU_S
        self._worked: deque[tuple[int, int]] = deque()
        self._layers = layers
        self._policy: Policy = numbered(-1)
        self._lease = LeaseTerms()
        self._mark_ns = self._mark_cpu_ns = 0
        self._beside = BesideServing(page, on_cores=run_ahead is None, host_cores=host_cores)
        self._begins_beside = False
        self._full_ns: int | None = None  # when the running step filled the GPU's queue; None: not full

    def before_step(self, engine_paused: Callable[[], bool], serve_control: Callable[[], object]) -> None:
        """Wait until a step may run. During the wait, `serve_control` handles aborts and updates."""
        held_since_ns = 0
        self._begins_beside = False
        try:
            while True:
                now = monotonic_ns()
                self._view.end_aborted()
                self._lease = self._page.lease()
                self._policy = numbered(self._lease.policy)
                if not self._guard.enforce(self._lease, self._policy, now):
                    continue
                if not self._view.has_work or engine_paused():
                    self._beside.watch(False)
                    return
                self._beside.watch(self._lease.gives_credit)
                decision = self._decide(now, now - held_since_ns if held_since_ns else 0)
                if decision.admitted:
                    self._begins_beside = decision.on_credit
                    return
                if decision.hold is Hold.NO_LEASE or (held_since_ns and now - held_since_ns > STALL_NS):
                    self._view.end([*self._view.waiting, *self._view.running])
                    continue
                held_since_ns = held_since_ns or now
                self._hold(decision.hold, now)
                self._wait(POLL_UNLENT_S if decision.hold is Hold.NO_SERVING else self._poll_s, CREDIT_LAYERS)
                serve_control()
        finally:
            if held_since_ns:
                self._page.close_span(Party.ROLLOUT, monotonic_ns(), aux=self._page.get(Party.ROLLOUT, Field.LAST_HOLD))
            if not self._begins_beside:
                self._beside.enter_idle_class()
            self._telemetry.say()

    def _decide(self, now_ns: int, held_ns: int) -> Decision:
        load = self._page.serving_load() if self._page.serving_works() else None
        credit_ns = self._page.credit_ns(now_ns)
        chunk_tokens = self._chunk(load, credit_ns)
        step_ns, prefill = self._telemetry.step_ns(chunk_tokens, layers=self._policy.yields)
        preempt_ns = self._preempt_ns(step_ns)
        self._page.set(Party.ROLLOUT, Field.PREEMPT_NS, preempt_ns or 0)
        layer_ns = (step_ns or 0) // self._layers
        self._beside.expect(layer_ns)
        running = len(self._view.running)
        return self._policy.admit(
            StepFacts(
                load=load,
                lease=self._lease,
                preempt_ns=preempt_ns,
                step_ns=step_ns,
                # A prefill takes no more than fits (`KvGuard.withheld_tokens`), a decode a slot for each request.
                kv_tokens=self._view.kv_tokens_used() + (0 if prefill else running),
                busy_share=self._busy_share(now_ns),
                worked_ns=self._page.rollout_worked_ns(now_ns),
                held_ns=held_ns,
                now_ns=now_ns,
                credit_ns=credit_ns,
                layer_ns=layer_ns,
                credit_limit=Hold(self._page.get(Party.SERVING, Field.CREDIT_LIMIT)),
            )
        )

    def _preempt_ns(self, step_ns: int | None) -> int | None:
        preemptible = self._beside.raised or os.sched_getscheduler(0) == os.SCHED_IDLE
        if preemptible != bool(self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE)):
            self._page.set(Party.ROLLOUT, Field.PREEMPTIBLE, int(preemptible))
            self._on_preemptible()
        if preemptible:
            return 0
        if step_ns is None or not self._policy.yields:
            return step_ns
        return step_ns * min(self._layers, self._ahead) // self._layers

    def _chunk(self, load: ServingLoad | None, credit_ns: int) -> int:
        """Set how many tokens rollouts may prefill in one step, and return this number. On credit, `credit_ns` must
        suffice for CREDIT_LAYERS_OF_CHUNK layers of the step. Otherwise, the regret share may limit the number."""
        fits, preemptible = None, self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE)
        if load is not None and load.wanted and self._lease.gives_credit:
            fits = self._telemetry.prefill_tokens_within(credit_ns * self._layers // CREDIT_LAYERS_OF_CHUNK) or 0
        elif self._policy.yields and not preemptible and load is not None and load.usual_prefill_ns is not None:
            wait_ns = int(2 * self._lease.regret_share * load.usual_prefill_ns)
            fits = self._telemetry.prefill_tokens_within(wait_ns * self._layers // self._ahead)
        chunk = self._chunk_tokens if fits is None else min(self._chunk_tokens, max(CHUNK_TOKENS_MIN, fits))
        self._set_chunk_tokens(chunk)
        return chunk

    def _hold(self, hold: Hold, now_ns: int) -> None:
        page = self._page
        opened = page.open(Party.ROLLOUT, now_ns)
        if opened is not None and opened.kind is Span.HELD and page.get(Party.ROLLOUT, Field.LAST_HOLD) == hold:
            return
        page.close_span(Party.ROLLOUT, now_ns, aux=page.get(Party.ROLLOUT, Field.LAST_HOLD))
        page.set(Party.ROLLOUT, Field.LAST_HOLD, hold)
        page.open_span(Party.ROLLOUT, Span.HELD, now_ns)

    def _busy_share(self, now_ns: int) -> float:
        since = now_ns - _SHARE_WINDOW_NS
        while self._worked and self._worked[0][1] <= since:
            self._worked.popleft()
        return sum(end - max(start, since) for start, end in self._worked) / _SHARE_WINDOW_NS

    def step_begins(self) -> None:
        self._full_ns, self._telemetry.layers_ns = None, 0
        self._telemetry.kind = Span.BESIDE if self._begins_beside else Span.ROLLOUT
        self._beside.count()
        self._mark(monotonic_ns(), time.thread_time_ns())

    def step_ended(self, began_ns: int) -> None:
        self._telemetry.after_wish_ns = self._note_taken(0) or 0
        self._worked.append((began_ns, monotonic_ns()))

    def between_layers(self, layers_left: int) -> None:
        """Yield while serving wants the device. Raises StepAbandonedError if the step should not continue."""
        after_wish_ns = self._note_taken(layers_left)
        if self._run_ahead is not None and self._policy.yields:
            self._run_ahead.before_layer()
            self._time_layers(layers_left)
        wanted = self._page.serving_wants()
        if not self._policy.yields:
            # A GPU's whole step is queued at once, and later work beside it is not visible here.
            self._telemetry.disturbed |= bool(wanted) or self._run_ahead is not None
            return
        if not wanted:
            self._go_on(after_wish_ns)
        elif not self._on_credit(after_wish_ns):
            self._give_way(wanted, after_wish_ns, layers_left)

    def _go_on(self, after_wish_ns: int | None) -> None:
        if self._beside.running or after_wish_ns is not None:  # Serving had the device meanwhile, and is done.
            self._switch(Span.ROLLOUT, monotonic_ns(), after_wish_ns or 0)
        self._beside.enter_idle_class()

    def _give_way(self, wanted_ns: int, after_wish_ns: int | None, layers_left: int) -> None:
        page = self._page
        if self._run_ahead is not None:
            self._run_ahead.drain()
            self._full_ns = None
        else:  # The core may have been taken since the clocks were read, and the wish's time with it.
            again_ns = self._note_taken(layers_left)
            after_wish_ns = again_ns if after_wish_ns is None else after_wish_ns
        began, latency_ns = monotonic_ns(), 0
        # If the span began after the wish, the kernel took and returned the core: the step was off the device.
        if not self._beside.running and page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS) < wanted_ns:
            latency_ns = max(0, began - wanted_ns)
        # A GPU's kernels continue while this thread waits: rollouts compute for all of that time.
        self._switch(Span.YIELD, began, after_wish_ns or 0 if self._run_ahead is None else latency_ns)
        on_credit = False
        try:
            while page.serving_wants() and not (on_credit := self._beside.fits()):
                self._check_worth(began)
                self._wait(self._poll_s)
        finally:
            ended, cpu = monotonic_ns(), time.thread_time_ns()
            page.close_span(Party.ROLLOUT, ended, aux=layers_left, latency_ns=latency_ns)
            self._telemetry.waited_ns += ended - began
        page.open_span(Party.ROLLOUT, Span.BESIDE if on_credit else Span.ROLLOUT, ended)
        self._mark(ended, cpu)
        if on_credit:
            self._begin_beside()
        else:
            self._beside.enter_idle_class()

    def _on_credit(self, after_wish_ns: int | None) -> bool:
        if not self._beside.fits():
            return False
        if not self._beside.running:
            self._switch(Span.BESIDE, monotonic_ns(), after_wish_ns or 0)
        self._begin_beside()
        return True

    def _begin_beside(self) -> None:
        # On cores the step's own clock gives its time alone; on a GPU a first guess is better than none.
        self._telemetry.disturbed |= self._run_ahead is not None and self._beside.layer_ns > 0
        self._full_ns = None
        self._beside.begin_layer()

    def _switch(self, kind: Span, now_ns: int, after_wish_ns: int) -> None:
        if self._beside.running:
            self._page.close_span(Party.ROLLOUT, now_ns)
        else:
            opened_ns = self._page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
            self._telemetry.worked(opened_ns, now_ns, latency_ns=after_wish_ns)
        self._page.open_span(Party.ROLLOUT, kind, now_ns)

    def _wait(self, seconds: float, layers: int = 1) -> None:
        if self._beside.watching.is_set() and self._page.serving_wants():
            self._beside.wait(layers)
        else:
            time.sleep(seconds)

    def _time_layers(self, layers_left: int) -> None:
        """Measure how long a step's layers take on the GPU. Called before each layer; `layers_left` layers have not
        begun. While the GPU's queue is full, the GPU completes exactly one layer between two calls."""
        layers = self._layers - self._ahead - 1
        if layers_left == layers + 1:
            self._full_ns = monotonic_ns()
        elif layers_left == 1 and self._full_ns is not None:
            self._telemetry.layers_ns = (monotonic_ns() - self._full_ns) * self._layers // layers

    def _check_worth(self, began_ns: int) -> None:
        page, now = self._page, monotonic_ns()
        if not page.serving_works():
            raise StepAbandonedError("serving is gone")
        if page.lease().expires_ns <= now:
            raise StepAbandonedError("the lease ended")
        if self._guard.pressed(self._policy):
            raise StepAbandonedError("serving needs the memory")
        if now - began_ns > STALL_NS:
            raise StepAbandonedError("serving kept the device")

    def _mark(self, now_ns: int, cpu_ns: int) -> None:
        self._mark_ns, self._mark_cpu_ns = now_ns, cpu_ns
        self._page.set(Party.ROLLOUT, Field.LOOKED_NS, now_ns)

    def _note_taken(self, layers_left: int) -> int | None:
        """Record a yield if the thread's CPU clock shows that the system took the core away. If there was no yield, and
        serving began to want the device after the last call, return the engine's computing time since then, in ns."""
        now, cpu = monotonic_ns(), time.thread_time_ns()
        taken = (now - self._mark_ns) - (cpu - self._mark_cpu_ns)
        page = self._page
        opened = page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        wanted = page.get(Party.SERVING, Field.FIRST_WANTED_NS)
        if self._beside.raised:
            if (out_ns := self._beside.taken_out_at(self._mark_ns)) is not None and opened:
                # Serving took the core during a layer, which continued beside serving from `out_ns` on.
                began = min(max(wanted, self._mark_ns), out_ns)
                self._telemetry.worked(opened, began)
                page.write_span(Party.ROLLOUT, SpanRecord(Span.YIELD, began, out_ns, layers_left))
                page.open_span(Party.ROLLOUT, Span.BESIDE, out_ns)
            self._beside.count()
            self._telemetry.waited_ns += taken
            self._mark(now, cpu)
            return None
        self._beside.count()
        after_wish_ns = None
        if wanted > self._mark_ns:
            after_wish_ns = max(0, now - wanted - (taken if self._run_ahead is None else 0))
        if taken > _TAKEN_MIN_NS and opened and page.get(Party.ROLLOUT, Field.PREEMPTIBLE):
            began = min(max(wanted, self._mark_ns), now - taken)
            self._telemetry.worked(opened, began)
            page.write_span(Party.ROLLOUT, SpanRecord(Span.YIELD, began, began + taken, layers_left))
            self._telemetry.waited_ns += taken
            page.open_span(Party.ROLLOUT, Span.ROLLOUT, began + taken)
            after_wish_ns = None
        self._mark(now, cpu)
        return after_wish_ns


def layers_of(model: Any) -> Any:
    """Return the decoder layers of an SGLang model. Raises TypeError if the model has none."""
    layers = getattr(getattr(model, "model", model), "layers", None)
    if layers is None or len(layers) == 0:
        raise TypeError(f"{type(model).__name__} has no `model.layers`: its steps could not yield; use another model")
    return layers


def add_layer_hooks(model: Any, between_layers: Callable[[int], object], *, after_last: bool = False) -> None:
    """Call `between_layers(layers left)` before each layer and, with `after_last`, after the last layer."""
    layers = layers_of(model)
    for index, layer in enumerate(layers):

        def hook(_module: Any, _args: Any, left: int = len(layers) - index) -> None:
            between_layers(left)

        layer.register_forward_pre_hook(hook)
    if after_last:

        def done(_module: Any, _args: Any, _output: Any) -> None:
            between_layers(0)

        layers[-1].register_forward_hook(done)
