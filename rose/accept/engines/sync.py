"""A rollout engine on the card is brought to new weights: an anchor first, then a delta, as an agent would do it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rose.accept.coserve.host import ROLLOUT, Host
from rose.accept.engines import models as engine_models
from rose.accept.stage import StageReport
from rose.runtime.coserving.weights.sync import EngineSync, Target
from rose.runtime.training.policy_model import PolicyShape
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.server import StoreServer

_PAUSE_MAX_MS = 50.0
_ANCHOR, _DELTA = 1, 2
Claim = Callable[..., None]


class Versions:
    """Two versions of a shape, published in a thread while engines start."""

    def __init__(self, shape: PolicyShape, folder: Path) -> None:
        self.store = VersionStore(folder)
        self.seconds = 0.0
        self._shape = shape
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._publish, name="publish", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until both are there. Raises TimeoutError, or what went wrong."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"two versions were not published after {timeout_s:.0f} s")
        if self._failed is not None:
            raise self._failed

    def _publish(self) -> None:
        began = time.monotonic()
        try:
            weights = engine_models.random_weights(self._shape)
            self.store.publish(_ANCHOR, weights)
            self.store.publish(_DELTA, engine_models.changed(weights))
        except Exception as error:
            self._failed = error
        self.seconds = time.monotonic() - began


def measure(host: Host, versions: Versions, claim: Claim, report: StageReport) -> None:
    """Claims that both were acknowledged, and the pause of the delta. Raises RuntimeError if one was not."""
    versions.wait(timeout_s=30.0)
    report.fact("sync: versions published, seconds", round(versions.seconds, 1))
    sync = EngineSync(host.seats[ROLLOUT].engine, host.staging(ROLLOUT), device_id="d0")
    acknowledged = 0
    with StoreServer(versions.store) as server:
        for version in (_ANCHOR, _DELTA):
            event = sync.bring(Target("", version, server.url))
            report.detail[f"sync {version}"] = {
                name: part for name, part in asdict(event).items() if name != "event_id"
            }
            if not event.ok:
                raise RuntimeError(f"version {version}: {event.reason}")
            assert event.pause_ns is not None, "a version that was swapped in took a pause"
            pause_ms = event.pause_ns / 1e6
            acknowledged += sync.standing.trusted
            report.fact(f"sync: pause of the {'anchor' if version == _ANCHOR else 'delta'}, ms", pause_ms)
            report.fact(f"sync: bytes of version {version}", event.dense_bytes)
    claim("versions acknowledged", acknowledged, "", 2, lower=False)
    claim("sync pause, delta", pause_ms, "ms", _PAUSE_MAX_MS)
