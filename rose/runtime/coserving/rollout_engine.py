"""Keeps a device's rollout engine running: starts it, and starts it again after ever longer if it died."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from rose.clock import monotonic_ns
from rose.runtime.engines.sglang import AddressInUseError, EngineError, EngineProcess, EngineSpec

#: Wait before an engine that died is started again: the first, doubled with each death up to the last.
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 60.0
#: An engine that lived for so long was sound: the next wait is the first one again.
SOUND_NS = 120_000_000_000
_LOOK_S = 0.1


class Lives(Protocol):
    """What is told of an engine's lives, from the thread that keeps it."""

    def launched(self, engine: EngineProcess) -> None:
        """It was launched, and does not answer yet."""

    def answers(self, engine: EngineProcess, duration_ns: int) -> None:
        """It answers, `duration_ns` after its launch."""

    def ended(self, engine: EngineProcess, reason: str) -> None:
        """It died, or could not be started. Nothing of it is left."""


class RolloutEngine:
    """One engine at a time, in a thread that lives as long as it does: the kernel ties a process to that thread.

    `scheduling` says whether the engine's scheduler is there. SGLang's server goes on for seconds without it, answering
    nothing: an engine whose scheduler was there and is not any more has died.
    """

    def __init__(
        self,
        spec: EngineSpec,
        lives: Lives,
        make: Callable[[EngineSpec], EngineProcess] = EngineProcess,
        *,
        scheduling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec, self._lives, self._make, self._scheduling = spec, lives, make, scheduling
        self._engine: EngineProcess | None = None
        #: Why no turn can run although the engine was not given up yet: what has no claim to a core takes long to end.
        self.dying: str | None = None
        self._first: EngineError | None = None
        #: Whether it was given another port since it last answered.
        self._moved = False
        self._began = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"engine-{spec.engine_id}", daemon=True)

    def start(self) -> None:
        """Return when the engine answers for the first time. Raises EngineError if it does not: then none is kept."""
        self._thread.start()
        self._began.wait()
        if self._first is not None:
            raise self._first

    def stop(self) -> bool:
        """End it and keep it no more; returns whether it was alive. Safe to call twice."""
        self._stopping.set()
        engine = self._engine
        was_alive = engine is not None and engine.alive
        if engine is not None:
            engine.stop()
        if self._thread.is_alive():
            self._thread.join()
        return was_alive

    # ------------------------------------------------------------------ the thread

    def _keep(self) -> None:
        back_off_s = BACK_OFF_FIRST_S
        while not self._stopping.is_set():
            launched_ns = monotonic_ns()
            reason = self._live(launched_ns)
            if self._first is not None:
                break
            if monotonic_ns() - launched_ns >= SOUND_NS:
                back_off_s = BACK_OFF_FIRST_S
            if reason is not None and not self._stopping.wait(back_off_s):
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)
        self._began.set()

    def _live(self, launched_ns: int) -> str | None:
        """One life of the engine; returns why it ended, None if it was stopped."""
        engine = self._engine = self._make(self._spec)
        self._lives.launched(engine)
        try:
            engine.launch()
            if self._stopping.is_set():
                engine.stop()
            engine.wait_ready()
            engine.settle()
        except EngineError as error:
            if self._stopping.is_set():
                return None
            engine.kill()
            elsewhere = self._spec.elsewhere() if isinstance(error, AddressInUseError) and not self._moved else None
            reason = "it did not start" if elsewhere is None else f"its port {self._spec.port} was taken"
            self._lives.ended(engine, reason)
            if elsewhere is not None:
                self._spec, self._moved = elsewhere, True
            elif not self._began.is_set():
                self._first = error
            return reason
        # Before it is brought to its version, which takes a while.
        reason, scheduled = "the process ended", self._scheduling()
        self._lives.answers(engine, monotonic_ns() - launched_ns)
        self._began.set()
        self._moved = False
        while engine.alive:
            if self._stopping.wait(_LOOK_S):
                return None
            before, scheduled = scheduled, self._scheduling()
            if before and not scheduled:
                reason = "its scheduler ended"
                break
        if self._stopping.is_set():
            return None
        self.dying = f"the rollout engine died ({reason}) and is started again"
        # What else it started is not left behind.
        engine.kill()
        self._lives.ended(engine, reason)
        self.dying = None
        return reason
