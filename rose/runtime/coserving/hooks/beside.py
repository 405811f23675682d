"""Rollout layers that run beside serving's steps, within the credit that serving gives, and the count of their work.
On cores a thread's own clock tells its work. There the kernel's idle class would leave nothing beside a serving that
computes, so the engine leaves that class while serving works and it may have credit."""

import time

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.engines import placement

_LOOK_S = 0.004
_LOOKS = 5


class BesideServing:
    """One rollout engine's layers beside serving. `on_cores`: not on a GPU."""

    def __init__(self, page: ArbiterPage, *, on_cores: bool) -> None:
        self._page, self._on_cores = page, on_cores
        #: What a layer of the next step takes alone; 0: unknown.
        self._layer_ns = 0
        self._counted_ns = 0  # of the layer that runs, before it began
        self._seen_ns = 0  # this thread's clock on cores, else the wall's, at the last count
        #: Threads that left the kernel's idle class; None: none had to.
        self._raised: list[int] | None = None

    @property
    def raised(self) -> bool:
        return self._raised is not None

    @property
    def running(self) -> bool:
        """Return whether the open span is of work beside serving."""
        page = self._page
        opened = page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        return bool(opened) and page.get(Party.ROLLOUT, Field.OPEN_KIND) == Span.BESIDE

    def expect(self, layer_ns: int) -> None:
        self._layer_ns = layer_ns
        self._page.set(Party.ROLLOUT, Field.LAYER_NS, layer_ns)

    @property
    def layer_known(self) -> bool:
        return self._layer_ns > 0

    def fits(self) -> bool:
        """Return whether serving's credit has room for a layer."""
        return self._page.credit_ns(monotonic_ns()) >= max(1, self._layer_ns)

    def begin_layer(self) -> None:
        """Count a layer before it begins, so that what serving reads is never less than what runs."""
        self.leave_idle_class()
        self._counted_ns = self._layer_ns
        self._add(self._layer_ns)

    def count(self) -> None:
        """Correct what was counted by what was computed since. On a GPU only the wall's clock tells, and is used for
        layers whose time alone is not known yet."""
        now_ns = self._clock_ns()
        if self.raised or (self.running and (self._on_cores or not self._layer_ns)):
            self._add(now_ns - self._seen_ns - self._counted_ns)
        self._seen_ns, self._counted_ns = now_ns, 0

    def wait(self) -> None:
        """Return soon, and at once when serving rests or gives credit for a layer. Each look takes serving's core."""
        self.leave_idle_class()
        for _ in range(_LOOKS):
            time.sleep(_LOOK_S)
            if self.fits() or not self._page.serving_wants():
                break
        self.count()

    def leave_idle_class(self) -> None:
        if self._raised is None and self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE):
            self._raised = placement.leave_idle_class()
            self._seen_ns = self._clock_ns()

    def enter_idle_class(self) -> None:
        if self._raised is not None:
            self.count()
            placement.enter_idle_class(self._raised)
            self._raised = None

    def _clock_ns(self) -> int:
        return time.thread_time_ns() if self._on_cores else monotonic_ns()

    def _add(self, work_ns: int) -> None:
        page = self._page
        page.set(Party.ROLLOUT, Field.WORK_NS, page.get(Party.ROLLOUT, Field.WORK_NS) + work_ns)
