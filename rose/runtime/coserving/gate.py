"""Holds a rollout engine's steps until serving's slack allows them, and makes a running step yield between layers."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.telemetry import EngineTelemetry
from rose.runtime.policy.slack import Hold, admit

#: How long to sleep between looks at the page. A look costs a few microseconds; a serving decode step takes
#: milliseconds, so this adds little to either engine.
POLL_S = 0.0005
#: How often a waiting step checks that the serving process it waits for is alive.
_ALIVE_CHECK_S = 1.0
_SHARE_WINDOW_NS = 1_000_000_000


class RolloutGate:
    """The executor's side inside a rollout engine that shares its device."""

    def __init__(self, page: ArbiterPage, telemetry: EngineTelemetry, prefill_chunk_tokens: int) -> None:
        self._page = page
        self._telemetry = telemetry
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._worked: deque[tuple[int, int]] = deque()

    def wait_for_admission(self, engine_paused: Callable[[], bool], serve_control: Callable[[], object]) -> None:
        """Return when the next step may run, or there is none to run.

        `serve_control` is called while waiting, so that aborts and weight updates are not held up with the step.
        """
        held_since_ns = 0
        while self._telemetry.has_work and not engine_paused():
            now = monotonic_ns()
            decision = admit(
                self._page.serving_load(),
                self._page.budgets(),
                self._page.lease(),
                step_ns=self._telemetry.next_step_ns(self._prefill_chunk_tokens),
                kv_tokens=self._telemetry.kv_tokens_used(),
                busy_share=self._busy_share(now),
                held_ns=now - held_since_ns if held_since_ns else 0,
                now_ns=now,
            )
            if decision.admitted or self._telemetry.only_aborted:
                break
            if not held_since_ns:
                held_since_ns = now
                self._page.open_span(Party.ROLLOUT, Span.HELD, now)
            self._page.set(Party.ROLLOUT, Field.LAST_HOLD, decision.hold)
            time.sleep(POLL_S)
            if decision.hold is Hold.SERVING_STEP and not self._serving_alive(held_since_ns):
                self._forget_dead_serving()
            serve_control()
        if held_since_ns:
            self._page.close_span(Party.ROLLOUT, monotonic_ns(), aux=self._page.get(Party.ROLLOUT, Field.LAST_HOLD))

    def yield_between_layers(self, layers_left: int) -> None:
        """Called before each layer of a running step: wait while serving is in a step of its own."""
        if not self._page.serving_in_step():
            return
        began = monotonic_ns()
        self._page.close_span(Party.ROLLOUT, began)
        self._page.open_span(Party.ROLLOUT, Span.YIELD, began)
        while self._page.serving_in_step():
            time.sleep(POLL_S)
            if not self._serving_alive(began):
                self._forget_dead_serving()
        ended = monotonic_ns()
        self._page.close_span(Party.ROLLOUT, ended, aux=layers_left)
        self._page.open_span(Party.ROLLOUT, Span.ROLLOUT, ended)

    def step_ended(self, began_ns: int) -> None:
        self._worked.append((began_ns, monotonic_ns()))

    def _busy_share(self, now_ns: int) -> float:
        since = now_ns - _SHARE_WINDOW_NS
        while self._worked and self._worked[0][1] <= since:
            self._worked.popleft()
        return sum(end - max(start, since) for start, end in self._worked) / _SHARE_WINDOW_NS

    def _serving_alive(self, waiting_since_ns: int) -> bool:
        """A serving engine that died in mid-step leaves its mark on the page; do not wait for it for ever."""
        if monotonic_ns() - waiting_since_ns < _ALIVE_CHECK_S * 1e9:
            return True
        pid = self._page.get(Party.SERVING, Field.PID)
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _forget_dead_serving(self) -> None:
        # The one case of writing another party's section: that party no longer exists.
        for field in (Field.IN_STEP_SINCE_NS, Field.WAITING, Field.RUNNING, Field.OPEN_SINCE_NS):
            self._page.set(Party.SERVING, field, 0)


def add_layer_hooks(model: Any, gate: RolloutGate) -> int:
    """Make every decoder layer of a loaded SGLang model look at the page before it runs; returns how many.

    Works on any architecture that keeps its layers in `model.model.layers`; raises TypeError for one that does not.
    """
    inner = getattr(model, "model", model)
    layers = getattr(inner, "layers", None)
    if layers is None or len(layers) == 0:
        raise TypeError(f"{type(model).__name__} keeps no `model.layers`: a rollout step of it could not yield")
    for index, layer in enumerate(layers):
        left = len(layers) - index
        layer.register_forward_pre_hook(lambda _module, _args, left=left: gate.yield_between_layers(left))
    return len(layers)
