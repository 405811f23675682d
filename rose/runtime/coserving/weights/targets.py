"""Brings a device's engine to what the controller wants it to hold, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rose.events import Sync
from rose.runtime.coserving.weights.sync import Target

#: Wait before a target that was missed is tried again: the first, doubled each time up to the last.
BACK_OFF_FIRST_S = 1.0
BACK_OFF_MAX_S = 60.0
#: An engine that comes up is looked for this often.
_LOOK_S = 0.25


class Targets:
    """The newest target wins: one that another took the place of meanwhile is tried no more.

    `held` gives the (run, version) that the engine holds, None while there is none; `bring` brings it to a target and
    returns what came of it, None while there is none. `locate` is called with the target that the engine is at, and
    again when that is fetched elsewhere: who took the engine up does not know it, and a trainer may move.
    """

    def __init__(
        self,
        device_id: str,
        held: Callable[[], tuple[str, int] | None],
        bring: Callable[[Target], Sync | None],
        locate: Callable[[Target], None],
    ) -> None:
        #: Why the engine is not at its target, if it was tried.
        self.failed: str | None = None
        #: Why the thread ended, if it was not asked to.
        self.failure: str | None = None
        self._held, self._bring, self._locate = held, bring, locate
        self._newest: Target | None = None
        #: The target that `locate` had last.
        self._located: Target | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name=f"targets-{device_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin with no other; one that is being brought in is not waited for: who gives the engine up ends it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def aim(self, target: Target | None) -> None:
        """From now on the engine is to hold this; None: what it holds."""
        with self._changed:
            if target != self._newest:
                self._newest, self.failed = target, None
                self._changed.notify()

    def _loop(self) -> None:
        back_off_s, tried = BACK_OFF_FIRST_S, None
        try:
            while (target := self._next()) is not None:
                if self._is_at(target):
                    self._locate(target)
                    self._located = target
                    continue
                if target != tried:
                    back_off_s, tried = BACK_OFF_FIRST_S, target
                event = self._bring(target)
                if event is None:
                    self._wait_for_another(target, _LOOK_S)
                elif not event.ok:
                    with self._changed:
                        if self._newest == target:
                            self.failed = f"{target.name}: {event.reason}"
                    self._wait_for_another(target, back_off_s)
                    back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)
        except Exception as error:
            self.failure = f"bringing the engine to its target failed: {type(error).__name__}: {error}"
            raise

    def _next(self) -> Target | None:
        """A target that the engine is not at, or that was not located yet, once there is one; None when this stops."""
        with self._changed:
            while not self._stopping:
                target = self._newest
                if target is not None and not (target == self._located and self._is_at(target)):
                    return target
                self.failed = None
                self._changed.wait(_LOOK_S)
        return None

    def _is_at(self, target: Target) -> bool:
        return self._held() == (target.run_id, target.version)

    def _wait_for_another(self, target: Target, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._newest != target, timeout_s)
