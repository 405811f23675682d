"""Sends heartbeats to the gateway, which answers each heartbeat when instructions change, or after a time limit."""

import http.client
import logging
import threading
import urllib.error
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rose.clock import Anchor, both_ns, monotonic_ns
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import ClockReading, Heartbeat, HeartbeatReply, PreemptRequest

logger = logging.getLogger(__name__)

_SPACING_S = 0.01  # heartbeats begin at least this far apart
_HOLD_S_MAX = 10.0  # the gateway holds a heartbeat for at most this long
_REFUSAL_BYTES_MAX = 1024


class Control:
    """Sends heartbeats from a thread, at least every `hold_s` seconds, and calls `answered` after each answer."""

    def __init__(
        self,
        device_id: str,
        client: ControlClient,
        hold_s: float,
        report: Callable[[], dict[str, Any]],
        answered: Callable[[], None],
        anchor: Anchor,
    ) -> None:
        self.answer = HeartbeatReply(seq=0, renew=[], wanted_ns={}, step=None)
        self.answered_ns = 0
        self.failure: str | None = None
        self._device_id, self._report, self._answered, self._anchor = device_id, report, answered, anchor
        self.hold(hold_s)
        self._client = client
        self._refusal: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"control-{device_id}", daemon=True)

    def hold(self, hold_s: float) -> None:
        self._hold_s = min(hold_s, _HOLD_S_MAX)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def beat(self, hold_s: float = 0.0) -> bool:
        now_ns, utc_ns = both_ns()
        heartbeat = Heartbeat(
            device_id=self._device_id,
            seen=self.answer.seq,
            hold_s=hold_s,
            clock=ClockReading(monotonic_ns=now_ns, utc_ns=utc_ns, device_time_ns=self._anchor.utc_ns(now_ns)),
            **self._report(),
        )
        try:
            reply = self._client.heartbeat(heartbeat)
        except urllib.error.HTTPError as error:
            refusal = f"{error.code}: {error.read(_REFUSAL_BYTES_MAX).decode(errors='replace')}"
            if refusal != self._refusal:
                logger.warning("the controller refuses heartbeats of device %s: %s", self._device_id, refusal)
            self._refusal = refusal
            return False
        except (OSError, http.client.HTTPException, ValueError):
            return False
        self.answer, self._refusal = reply, None  # In this order, so that an old answer is never taken for a newer one.
        self.answered_ns = monotonic_ns()
        return True

    def take_back(self, engine_id: str, reason: str) -> int:
        """Have the gateway take all turns off an engine. Return their number, or 0 if the gateway does not answer."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            return self._client.preempt(PreemptRequest(engine_id=engine_id, reason=reason)).requests
        return 0

    def _loop(self) -> None:
        try:
            while not self._stopping.is_set():
                began_ns, seen = monotonic_ns(), self.answer.seq
                answered = self.beat(self._hold_s)
                if answered:
                    self._answered()
                # A gateway that answers at once without news cannot hold heartbeats.
                news = answered and self.answer.seq != seen
                pause_s = (_SPACING_S if news else self._hold_s) - (monotonic_ns() - began_ns) / 1e9
                if pause_s > 0:
                    self._stopping.wait(pause_s)
        except Exception as error:
            self.failure = f"talking with the gateway failed: {type(error).__name__}: {error}"
            raise
