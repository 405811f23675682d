"""Parts of the stage `engines` after its rounds: an engine is killed under load, and one is brought to new weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rose.accept.coserve.host import ROLLOUT, SERVING, Host
from rose.accept.coserve.keeper import ROSE, Keeper
from rose.accept.coserve.rounds import Scene, serving_command
from rose.accept.coserve.traffic import Arrivals
from rose.accept.stage import StageReport
from rose.accept.stages import engine_models
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import Party, Span
from rose.runtime.coserving.weights.sync import EngineSync, Target
from rose.runtime.training.policy_model import PolicyShape
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.server import StoreServer

#: Work runs this long before an engine is killed, and is watched this long afterwards.
_BEFORE_S, _AFTER_S = 2.0, 2.0
#: The kernel gives up a dead process's section of the page while it ends it, which takes long with a GPU's memory.
_GONE_MAX_S = 10.0
#: A step that was admitted just before begins within this time.
_ADMITTED_NS = 100_000_000
_RAMP_S = 1.0
_SEED = 7000
_PAUSE_MAX_MS = 50.0
_ANCHOR, _DELTA = 1, 2
_PUBLISH_MAX_S = 30.0


def kill_rollout(scene: Scene, report: StageReport, arrivals: Arrivals) -> None:
    """Kill the rollout engine in the middle of its steps: no serving request fails."""
    with _killed(scene, ROLLOUT, arrivals) as (keeper, killed_ns):
        served: list[dict[str, Any]] = scene.serving.hear()["requests"]
    steps = sum(span.kind is Span.ROLLOUT and span.start_ns < killed_ns for span in keeper.spans)
    failed = [request["reason"] for request in served if request["outcome"] != "completed"]
    report.fact("rollout killed: serving requests", len(served))
    report.fact("rollout killed: rollout steps before it", steps)
    report.detail["rollout killed: failures"] = failed
    name = "engines: serving requests failed, rollout engine killed"
    report.claim(name, len(failed), "requests", 0, "lower")
    report.claim("engines: serving requests sent, rollout engine killed", len(served), "requests", 1, "higher")


def kill_serving(scene: Scene, report: StageReport, arrivals: Arrivals) -> None:
    """Kill the serving engine under traffic: the rollout engine begins no step once the page says so."""
    host = scene.host
    with _killed(scene, SERVING, arrivals) as (keeper, killed_ns):
        deadline_s = time.monotonic() + _GONE_MAX_S
        while host.page.alive(Party.SERVING) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        gone_ns = monotonic_ns()
        time.sleep(_AFTER_S)
        alive = host.engines[ROLLOUT].alive
    starts = [span.start_ns for span in keeper.spans if span.kind is Span.ROLLOUT]
    report.fact("serving killed: rollout steps before it", sum(start < killed_ns for start in starts))
    report.fact("serving killed: until the page says so, ms", round((gone_ns - killed_ns) / 1e6, 1))
    late = sum(start > gone_ns + _ADMITTED_NS for start in starts)
    report.claim("engines: rollout steps begun without serving", late, "steps", 0, "lower")
    report.claim("engines: rollout engine lives on without serving", int(alive), "", 1, "higher")


@contextmanager
def _killed(scene: Scene, name: str, arrivals: Arrivals) -> Iterator[tuple[Keeper, int]]:
    """Kill an engine while serving has traffic and rollouts work; yield what saw it, and when it was killed."""
    engines, keeper = scene.host.engines, scene.keeper(ROSE)
    keeper.start()
    try:
        scene.rollout.tell(url=engines[ROLLOUT].url, turns=scene.turns, seed=_SEED)
        time.sleep(_RAMP_S)
        scene.serving.tell(**serving_command(engines[SERVING].url, arrivals, _SEED))
        scene.serving.hear()
        time.sleep(_BEFORE_S)
        killed_ns = monotonic_ns()
        engines[name].kill()
        yield keeper, killed_ns
    finally:
        scene.rollout.close()
        keeper.stop()


class Versions:
    """Two versions of a shape, published in a thread while engines start."""

    def __init__(self, shape: PolicyShape, folder: Path) -> None:
        self.store = VersionStore(folder)
        self.took_s = 0.0
        self._shape = shape
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._publish, name="publish", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Wait for both. Raises TimeoutError, or what went wrong."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"two versions were not published after {timeout_s:.0f} s")
        if self._failed is not None:
            raise self._failed

    def _publish(self) -> None:
        began_s = time.monotonic()
        try:
            weights = engine_models.random_weights(self._shape)
            self.store.publish(_ANCHOR, weights)
            self.store.publish(_DELTA, engine_models.changed(weights))
        except Exception as error:
            self._failed = error
        self.took_s = time.monotonic() - began_s


def sync(host: Host, versions: Versions, report: StageReport) -> None:
    """Bring the rollout engine to an anchor and then to a delta, as an agent does. Raises RuntimeError if one fails."""
    versions.wait(_PUBLISH_MAX_S)
    report.fact("sync: versions published, seconds", round(versions.took_s, 1))
    engine = EngineSync(host.engines[ROLLOUT], host.staging(ROLLOUT), device_id="d0")
    acknowledged, pause_ms = 0, float("inf")
    with StoreServer(versions.store) as server:
        for version in (_ANCHOR, _DELTA):
            event = engine.bring(Target("", version, server.url))
            report.detail[f"sync {version}"] = {
                name: part for name, part in asdict(event).items() if name != "event_id"
            }
            if not event.ok:
                raise RuntimeError(f"version {version}: {event.reason}")
            assert event.pause_ns is not None, "a version that was swapped in took a pause"
            pause_ms = event.pause_ns / 1e6
            acknowledged += engine.standing.trusted
            report.fact(f"sync: pause of the {'anchor' if version == _ANCHOR else 'delta'}, ms", pause_ms)
    report.claim("engines: versions acknowledged", acknowledged, "", 2, "higher")
    report.claim("engines: sync pause, delta", pause_ms, "ms", _PAUSE_MAX_MS, "lower")


def within(seconds: float, act: Callable[[], object]) -> None:
    """Act in a thread that is given up after `seconds`. Raises TimeoutError then, and what `act` raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"not finished after {seconds:.0f} s")
    if raised:
        raise raised[0]
