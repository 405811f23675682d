"""An engine is killed while serving has traffic and rollouts work beside it: what of it the other one notices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rose.accept.coserve.host import ROLLOUT, SERVING
from rose.accept.coserve.keeper import Keeper
from rose.accept.coserve.policies import POLICIES, ROSE
from rose.accept.coserve.rounds import Scene, serving_command
from rose.accept.coserve.traffic import Arrivals
from rose.accept.stage import StageReport
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import Party, Span

#: Work goes on this long before an engine is killed, and is watched this long afterwards.
_BEFORE_S, _AFTER_S = 2.0, 2.0
#: The kernel gives up a dead process's section of the page while it ends it, which takes long with a GPU's memory.
_GONE_MAX_S = 10.0
#: A step that was admitted just before begins within this time.
_ADMITTED_NS = 100_000_000
_RAMP_S = 1.0
Claim = Callable[..., None]
Fault = Callable[[Scene, Claim, StageReport, Arrivals], None]


def rollout_killed(scene: Scene, claim: Claim, report: StageReport, arrivals: Arrivals) -> None:
    """The rollout engine ends by SIGKILL in the middle of its steps: no serving request fails."""
    with _lent(scene) as keeper:
        scene.serving.tell(**serving_command(scene.host.seats[SERVING].engine.url, arrivals, 7001))
        scene.serving.hear()
        time.sleep(_BEFORE_S)
        killed_ns = monotonic_ns()
        scene.host.seats[ROLLOUT].engine.kill()
        served: list[dict[str, Any]] = scene.serving.hear()["requests"]
    steps = [span for span in keeper.spans if span.kind is Span.ROLLOUT and span.start_ns < killed_ns]
    failed = [request for request in served if request["outcome"] != "completed"]
    report.fact("rollout killed: serving requests", len(served))
    report.fact("rollout killed: rollout steps before it", len(steps))
    report.detail["rollout killed: failures"] = [request["reason"] for request in failed]
    claim("serving requests failed, rollout engine killed", len(failed), "requests", 0)
    claim("serving requests sent, rollout engine killed", len(served), "requests", 1, lower=False)


def serving_killed(scene: Scene, claim: Claim, report: StageReport, arrivals: Arrivals) -> None:
    """The serving engine ends by SIGKILL under traffic: the rollout engine begins no step once the page says so."""
    host = scene.host
    with _lent(scene) as keeper:
        scene.serving.tell(**serving_command(host.seats[SERVING].engine.url, arrivals, 7002))
        scene.serving.hear()
        time.sleep(_BEFORE_S)
        killed_ns = monotonic_ns()
        host.seats[SERVING].engine.kill()
        deadline = time.monotonic() + _GONE_MAX_S
        while host.page.alive(Party.SERVING) and time.monotonic() < deadline:
            time.sleep(0.001)
        gone_ns = monotonic_ns()
        time.sleep(_AFTER_S)
        alive = host.seats[ROLLOUT].engine.alive
    starts = [span.start_ns for span in keeper.spans if span.kind is Span.ROLLOUT]
    report.fact("serving killed: rollout steps before it", sum(start < killed_ns for start in starts))
    report.fact("serving killed: until the page says so, ms", round((gone_ns - killed_ns) / 1e6, 1))
    late = [start for start in starts if start > gone_ns + _ADMITTED_NS]
    claim("rollout steps begun without serving", len(late), "steps", 0)
    claim("rollout engine lives on without serving", int(alive), "", 1, lower=False)


@contextmanager
def _lent(scene: Scene) -> Iterator[Keeper]:
    """Rollouts under a lease until the end of it. What their client hears then is lost: its engine may be gone."""
    host, way = scene.host, POLICIES[ROSE]
    host.adopt(way)
    keeper = Keeper(host.page, host.memory, way, scene.budgets, scene.max_prompt_tokens, host.rollout_tokens)
    keeper.start()
    try:
        scene.rollout.tell(url=host.seats[ROLLOUT].engine.url, turns=scene.turns, seed=7000)
        time.sleep(_RAMP_S)
        yield keeper
    finally:
        scene.rollout.close()
        keeper.stop()
