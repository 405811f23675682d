"""Runs rollout layers beside serving's steps, within the credit of `policy.credit`, and counts their work.

On CPU cores, an engine in the kernel's idle class (SCHED_IDLE) gets no time while serving computes. A watching thread
takes the engine out of that class while there is credit."""

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.platform import placement

_LOOK_S = 0.001
_WAIT_S = 0.02


class BesideServing:
    """Runs one rollout engine's layers beside serving. Create this object in the thread that computes."""

    def __init__(self, page: ArbiterPage, *, on_cores: bool, host_cores: Collection[int] = ()) -> None:
        self._page, self._on_cores, self._host_cores = page, on_cores, host_cores
        self.layer_ns = 0  #: How long a layer of the next step takes alone; 0: unknown.
        self._layers = 1  # the number of layers that the computing thread needs credit for
        self._counted_ns = 0  # work of the current layer that was counted before the layer began
        self._seen_ns = 0  # the time of the last count: on cores the computing thread's clock, else wall time
        self._computing = time.pthread_getcpuclockid(threading.get_ident())
        self._raised: list[int] | None = None  #: The threads taken out of the kernel's idle class, or None.
        self._raised_at_ns = 0
        self._lock = threading.Lock()
        self.watching, self._woken = threading.Event(), threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def raised(self) -> bool:
        return self._raised is not None

    @property
    def running(self) -> bool:
        page = self._page
        opened = page.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        return bool(opened) and page.get(Party.ROLLOUT, Field.OPEN_KIND) == Span.BESIDE

    def expect(self, layer_ns: int) -> None:
        self.layer_ns = layer_ns
        self._page.set(Party.ROLLOUT, Field.LAYER_NS, layer_ns)

    def fits(self, layers: int = 1) -> bool:
        return self._page.credit_ns(monotonic_ns()) >= max(1, layers * self.layer_ns)

    def begin_layer(self) -> None:
        """Add a layer's predicted work to the count before the layer runs, so that the count is never too low."""
        self._layers = 1
        self._leave_idle_class()
        self._counted_ns = self.layer_ns
        self._add(self.layer_ns)

    def count(self) -> None:
        """Replace the layer's predicted work in the count by the work that was really done."""
        with self._lock:
            now_ns = self._clock_ns()
            if self.raised or (self.running and (self._on_cores or not self.layer_ns)):
                self._add(now_ns - self._seen_ns - self._counted_ns)
            self._seen_ns, self._counted_ns = now_ns, 0

    def taken_out_at(self, since_ns: int) -> int | None:
        """Return when the engine was taken out of the idle class, or None if this did not happen after `since_ns`."""
        return self._raised_at_ns if self.raised and self._raised_at_ns > since_ns and not self.running else None

    def watch(self, wanted: bool) -> None:
        if not wanted or not self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE):
            self.watching.clear()
            return
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        self.watching.set()

    def wait(self, layers: int = 1) -> None:
        """Wait at most 20 ms until serving rests or gives credit. To spare serving's core, this does not poll."""
        if self.fits(layers):
            time.sleep(_WAIT_S)
            return
        self._layers = layers
        self._woken.clear()
        if self._page.serving_wants():
            self._woken.wait(_WAIT_S)

    def _watch(self) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(placement.WATCHER)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if self._host_cores:
            os.sched_setaffinity(0, self._host_cores)
        while True:
            self.watching.wait()
            if not self._page.serving_wants():
                self._woken.set()
            elif self.fits(self._layers):
                self._leave_idle_class()
                self._woken.set()
            time.sleep(_LOOK_S)

    def _leave_idle_class(self) -> None:
        if self._raised is not None or not self._page.get(Party.ROLLOUT, Field.PREEMPTIBLE):
            return
        with self._lock:
            if self._raised is None:
                self._seen_ns, self._raised_at_ns = self._clock_ns(), monotonic_ns()
                self._raised = placement.leave_idle_class()

    def enter_idle_class(self) -> None:
        if self._raised is not None:
            self.count()
            with self._lock:
                placement.enter_idle_class(self._raised)
                self._raised = None

    def _clock_ns(self) -> int:
        return time.clock_gettime_ns(self._computing) if self._on_cores else monotonic_ns()

    def _add(self, work_ns: int) -> None:
        page = self._page
        page.set(Party.ROLLOUT, Field.WORK_NS, page.get(Party.ROLLOUT, Field.WORK_NS) + work_ns)
