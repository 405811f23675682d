"""Keeps a device's rollout engine running: takes up the one that runs or starts one, and starts it again after ever
longer if it died."""

from __future__ import annotations

import dataclasses
import http.client
import threading
from collections.abc import Callable
from typing import Protocol

import psutil

from rose.clock import monotonic_ns
from rose.errors import UserError
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.coserving.hooks.asking import question
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.engines.sglang import AddressInUseError, EngineError, EngineProcess, EngineSpec

#: Wait before an engine that died is started again: the first, doubled with each death up to the last.
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 60.0
#: An engine that lived for so long was sound: the next wait is the first one again.
SOUND_NS = 120_000_000_000
_LOOK_S = 0.1
#: A serving engine that is away for so long finds the memory of its GPU free when it starts.
AWAY_NS = 5_000_000_000
#: One that is to be taken up answers within this.
_ANSWER_S = 5.0
#: What an engine that dies as it is started, or a host that lacks something for it, makes of starting it.
_NOT_STARTED = (UserError, OSError, psutil.Error, http.client.HTTPException, ValueError)


def why_away(reason: str, *, died: bool) -> str:
    """Why no turn can run on an engine that has ended, for `reason`, until it is started again."""
    return f"the rollout engine {'died' if died else 'was ended'} ({reason}) and is started again"


class Lives(Protocol):
    """What is told of an engine's lives, from the thread that keeps it."""

    def launched(self, engine: EngineProcess) -> None:
        """It was launched, and does not answer yet."""

    def answers(self, engine: EngineProcess, duration_ns: int) -> None:
        """It answers, `duration_ns` after its launch."""

    def adopted(self, engine: EngineProcess) -> str | None:
        """It answers, and has run since before this agent. Returns why it is of no use, None if it is."""

    def ended(self, engine: EngineProcess, reason: str, *, died: bool = True) -> None:
        """It died, or could not be started, or was ended until there is room for it. Nothing of it is left."""

    def lost(self, pid: int, reason: str) -> None:
        """One that ran under an agent before this one has ended, or was ended since it could not be taken up."""

    def given_up(self) -> None:
        """It is to be left to another agent. Returns when nothing is asked of it any more."""


class RolloutEngine:
    """One engine at a time, in a thread that lives as long as it does: the kernel ties a process to that thread, unless
    its spec has it outlive its agent. Then the one on record is taken up, if it runs, is of that spec, and answers.

    `scheduling` says whether the engine's scheduler is there. SGLang's server goes on for seconds without it, answering
    nothing: an engine whose scheduler was there and is not any more has died.

    A serving engine sizes its pool by what is free as it starts. So on a lent GPU the engine is started once a serving
    engine is on the page, and ended when none was for a while.
    """

    def __init__(
        self,
        spec: EngineSpec,
        lives: Lives,
        make: Callable[[EngineSpec], EngineProcess] = EngineProcess,
        *,
        scheduling: Callable[[], bool] = lambda: False,
        persistent: bool = False,
    ) -> None:
        self._spec, self._lives, self._make, self._scheduling = spec, lives, make, scheduling
        self._persistent = persistent
        self._engine: EngineProcess | None = None
        #: Why no turn can run although the engine was not given up yet: what has no claim to a core takes long to end.
        self.dying: str | None = None
        #: Why it is kept no more, if nobody asked for that.
        self.failure: str | None = None
        self._first: EngineError | None = None
        #: Whether it answers, as far as is known: then it can be left.
        self._up = False
        #: Whether it was given another port since it last answered.
        self._moved = False
        self._began = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"engine-{spec.engine_id}", daemon=True)

    def start(self) -> None:
        """Return when the engine answers for the first time. Raises EngineError if it does not: then none is kept. One
        that is `persistent` is not waited for, and tried again."""
        self._thread.start()
        if self._persistent:
            return
        self._began.wait()
        if self._first is not None:
            raise self._first
        if self.failure is not None:
            raise EngineError(self.failure)

    def stop(self, *, leave: bool = False) -> bool:
        """Keep it no more, and end it, or `leave` it to the next agent; returns whether it was alive.

        Safe to call twice.
        """
        self._stopping.set()
        if leave:
            self._lives.given_up()
        engine = self._engine
        was_alive = engine is not None and engine.alive
        if engine is not None and not (leave and self._up and self._spec.orphan_s is not None):
            engine.stop()
        if self._thread.is_alive():
            self._thread.join()
        return was_alive

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            self._keep()
        except Exception as error:
            self.failure = f"keeping the rollout engine failed: {type(error).__name__}: {error}"
            raise
        finally:
            self._began.set()

    def _keep(self) -> None:
        back_off_s = BACK_OFF_FIRST_S
        adopted = self._adopt()
        while not self._stopping.is_set():
            if adopted is None and not self._has_room():
                self._stopping.wait(_LOOK_S)
                continue
            launched_ns = monotonic_ns()
            reason = self._live(launched_ns) if adopted is None else self._live_on(adopted, scheduled=True)
            adopted = None
            if self._first is not None:
                break
            if monotonic_ns() - launched_ns >= SOUND_NS:
                back_off_s = BACK_OFF_FIRST_S
            if reason is not None and not self._stopping.wait(back_off_s):
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)

    def _adopt(self) -> EngineProcess | None:
        """The engine that an agent before this one left, once it is told; what cannot be taken up is ended."""
        spec, page = self._spec, self._spec.plugin.page
        if spec.orphan_s is None or page is None or (record := EngineRecord.read(page)) is None:
            return None
        engine = self._make(dataclasses.replace(spec, port=record.port))
        reason = "it ended while it had no agent"
        if engine.adopt(record):
            # It did well without an agent: one that ends before it knows more leaves it, too.
            self._up = True
            self._engine = engine
            if (unfit := self._unfit(engine, record) or self._lives.adopted(engine)) is None:
                self._began.set()
                return engine
            if self._stopping.is_set():
                return None
            self._up = False
            reason = unfit
            engine.kill()
        adoption.record_path(page).unlink(missing_ok=True)
        self._lives.lost(record.pid, reason)
        return None

    def _unfit(self, engine: EngineProcess, record: EngineRecord) -> str | None:
        """Why an engine that runs is not taken up."""
        spec = self._spec
        if record.spec_sha256 != adoption.spec_sha256(spec):
            return "it was started as another one than is wanted now"
        if record.port != spec.port and not spec.any_port:
            return f"it listens on port {record.port}, not {spec.port}"
        if not self._scheduling():
            return "its scheduler is not on the device's page"
        try:
            # It ends nothing, and every scheduler that turns answers it at once.
            engine.post("/generate", question("end", "none"), timeout_s=_ANSWER_S)
            # An agent that was killed as it started the engine had not come to this.
            engine.settle()
        except (OSError, http.client.HTTPException, ValueError, psutil.Error) as error:
            return f"it does not answer ({error})"
        return None

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
        except _NOT_STARTED as error:
            return self._did_not_start(engine, error)
        # Before it is brought to its version, which takes a while.
        reason, scheduled = "the process ended", self._scheduling()
        self._lives.answers(engine, monotonic_ns() - launched_ns)
        self._began.set()
        self._moved = False
        return self._live_on(engine, scheduled=scheduled, reason=reason)

    def _did_not_start(self, engine: EngineProcess, error: Exception) -> str | None:
        """Returns what `_live` does."""
        if self._stopping.is_set():
            return None
        engine.kill()
        spec = self._spec
        elsewhere = spec.elsewhere() if isinstance(error, AddressInUseError) and not self._moved else None
        if isinstance(error, EngineError):
            reason = "it did not start" if elsewhere is None else f"its port {spec.port} was taken"
        else:
            # Of this its log says nothing.
            reason = f"it did not start: {type(error).__name__}: {error}"
            error = EngineError(f"engine {spec.engine_id} ({spec.model}): {reason}")
        self._lives.ended(engine, reason)
        if elsewhere is not None:
            self._spec, self._moved = elsewhere, True
        elif not self._began.is_set() and not self._persistent:
            self._first = error
        return reason

    def _live_on(self, engine: EngineProcess, *, scheduled: bool, reason: str = "the process ended") -> str | None:
        """What is left of a life once the engine answers."""
        self._up, died, room_ns = True, True, monotonic_ns()
        while engine.alive:
            if self._stopping.wait(_LOOK_S):
                return None
            before, scheduled = scheduled, self._scheduling()
            if before and not scheduled:
                reason = "its scheduler ended"
                break
            if self._has_room():
                room_ns = monotonic_ns()
            elif monotonic_ns() - room_ns >= AWAY_NS:
                reason, died = "no serving engine is on its GPU, and one that starts there comes first", False
                break
        if self._stopping.is_set():
            return None
        self._up = False
        self.dying = why_away(reason, died=died)
        # What else it started is not left behind.
        engine.kill()
        self._lives.ended(engine, reason, died=died)
        self.dying = None
        return reason

    def _has_room(self) -> bool:
        """Whether nobody is to have the device's memory before this engine."""
        spec = self._spec
        lent_gpu = spec.gpu is not None and spec.plugin.gated
        return not lent_gpu or spec.plugin.page is None or has_engine(spec.plugin.page)
