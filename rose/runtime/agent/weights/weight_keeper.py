"""Keeps a device's engine at the wanted weights, in a thread that syncs and audits."""

import threading
from collections.abc import Callable

from rose.clock import monotonic_ns
from rose.events import Record, Sync
from rose.runtime.agent.weights.sync import EngineSync, Target
from rose.runtime.policy.drift import next_action

BACK_OFF_FIRST_S = 1.0  #: The first wait before a missed target is retried, doubled up to BACK_OFF_MAX_S.
BACK_OFF_MAX_S = 60.0
_LOOK_S = 0.25
_LAST_S = 5.0


class WeightKeeper:
    """Keeps an engine at the newest target. Calls `coming` before a sync, and `take_out` if weights are not trusted."""

    def __init__(
        self,
        device_id: str,
        engine: Callable[[], EngineSync | None],
        audit_s: float,
        *,
        coming: Callable[[str], None],
        take_out: Callable[[str], None],
        record: Record,
    ) -> None:
        self.failed: str | None = None  # why the engine is not at its target, after a failed try
        self.failure: str | None = None
        self._engine, self._audit_ns = engine, int(audit_s * 1e9)
        self._coming, self._take_out, self._record = coming, take_out, record
        self._newest: Target | None = None
        self._sync: EngineSync | None = None
        self._located: Target | None = None
        self._taken_out = False
        self._missed: Target | None = None  #: The last missed target, its next try, and the wait after it.
        self._retry_ns, self._back_off_s = 0, BACK_OFF_FIRST_S
        self._stopping = False
        self._wake = threading.Event()  #: Set by a new target and by the end: an audit yields.
        self._thread = threading.Thread(target=self._loop, name=f"weights-{device_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def join(self) -> None:
        """Wait until a sync in progress is recorded, because turns may use its version. Do not wait longer than
        `_LAST_S`: the thread may be telling an origin that does not answer."""
        if self._thread.is_alive():
            self._thread.join(_LAST_S)

    def aim(self, target: Target | None) -> None:
        if target != self._newest:
            self._newest, self.failed = target, None
            self._wake.set()

    def _loop(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()
                if not self.look(monotonic_ns()):
                    self._wake.wait(_LOOK_S)
        except Exception as error:
            self.failure = f"keeping the engine's weights failed: {type(error).__name__}: {error}"
            raise

    def look(self, now_ns: int) -> bool:
        """Do the first action that is due at `now_ns`. Return False if none is due."""
        sync, target = self._engine(), self._newest
        if sync is not self._sync:
            self._sync, self._located, self._missed, self._taken_out = sync, None, None, False
            if sync is not None and (event := sync.missing_sync) is not None:
                self._record_and_tell(sync, event)
        if sync is None:
            return False
        if target is None or sync.held == (target.run_id, target.version):
            self.failed = None
            if target is not None and target != self._located:
                sync.locate(target)
                self._located = target
                return True
        elif target != self._missed or now_ns >= self._retry_ns:
            self._bring(sync, target)
            return True
        return self._guard(sync, now_ns)

    def _bring(self, sync: EngineSync, target: Target) -> None:
        self._coming(target.run_id)
        event = sync.bring(target)
        if event.ok:
            self._missed = None
            self._record_and_tell(sync, event)
            return
        self._record(event)
        if target == self._newest:
            self.failed = f"{target.name}: {event.reason}"
        self._back_off_s = min(2 * self._back_off_s, BACK_OFF_MAX_S) if target == self._missed else BACK_OFF_FIRST_S
        self._missed, self._retry_ns = target, monotonic_ns() + int(self._back_off_s * 1e9)

    def _guard(self, sync: EngineSync, now_ns: int) -> bool:
        standing = sync.standing
        if standing.trusted:
            self._taken_out = False
        elif not self._taken_out:
            self._take_out_for("a sync left it with weights that are not those of the version")
        event, action = None, next_action(standing, self._audit_ns, now_ns)
        if action == "audit" and (event := sync.audit(self._wake)) is not None:
            self._found(event)
        elif action == "resync" and (event := sync.bring_back()) is not None:
            self._record_and_tell(sync, event)
        return event is not None

    def _record_and_tell(self, sync: EngineSync, event: Sync) -> None:
        """Record a sync, and only then tell the origin, which may not answer: turns may use the version already."""
        self._record(event)
        sync.note_recorded()
        if not self._stopping and (drift := sync.acknowledge()) is not None and not self._stopping:
            self._found(drift)

    def _found(self, drift: Sync) -> None:
        self._take_out_for(drift.reason or "drift")
        self._record(drift)

    def _take_out_for(self, reason: str) -> None:
        self._taken_out = True
        self._take_out(reason)
