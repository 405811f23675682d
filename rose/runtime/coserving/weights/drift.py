"""Sees that an engine goes on holding the weights it acknowledged; one that does not is taken out and brought back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from rose.clock import monotonic_ns
from rose.events import Record, Sync
from rose.ledger.layout import LedgerError
from rose.runtime.coserving.weights.sync import EngineSync
from rose.runtime.policy.drift import next_action

_LOOK_S = 0.25
_STOP_TIMEOUT_S = 10.0


class DriftGuard:
    """One engine's guard, in a thread of its own: audits take long, and heartbeats must not wait for them.

    `take_out` is called with the reason once the engine is no longer trusted, after an audit or after a sync. Each
    drift and each attempt to bring the engine back is recorded; an audit that found nothing is not. `failure` says why
    the guard itself ended.
    """

    def __init__(self, sync: EngineSync, audit_s: float, *, take_out: Callable[[str], None], record: Record) -> None:
        self.failure: str | None = None
        self._sync = sync
        self._audit_ns = int(audit_s * 1e9)
        self._take_out = take_out
        self._write = record
        self._taken_out = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rose-drift", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End it, in the middle of an audit if need be."""
        self._stopping.set()
        if self._thread.is_alive():
            self._sync.call_off()
            self._thread.join(_STOP_TIMEOUT_S)

    def look(self, now_ns: int) -> None:
        """Do what is due at `now_ns`, and return when it is done."""
        standing = self._sync.standing
        if standing.trusted:
            self._taken_out = False
        elif not self._taken_out:
            self._take_out_for("a sync left it with weights that are not those of the version")
        match next_action(standing, self._audit_ns, now_ns):
            case "audit":
                drift = self._sync.audit()
                if drift is not None:
                    self._take_out_for(drift.reason or "drift")
                    self._record(drift)
            case "resync":
                back = self._sync.bring_back()
                if back is not None:
                    self._record(back)
            case "wait":
                pass

    def _loop(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_S):
                self.look(monotonic_ns())
        except Exception as error:
            self.failure = f"the drift guard failed: {type(error).__name__}: {error}"
            raise

    def _take_out_for(self, reason: str) -> None:
        self._taken_out = True
        self._take_out(reason)

    def _record(self, event: Sync) -> None:
        # What happened to the engine stands; an event that cannot be written now waits in the writer's queue.
        with suppress(LedgerError):
            self._write(event)
