"""The built-in RL loop: rollouts, an update, weights to every engine, step after step.

A part that dies in the middle costs what it was doing: a worker plays its groups again, a trainer goes on from its
last update, an engine comes back with the version it was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rose.clock import monotonic_ns
from rose.config import TrainingConfig
from rose.runtime.actors import GroupSpec, StepReport
from rose.runtime.cluster import DeploymentError
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import StepRequest
from rose.runtime.supervision import Part, Supervisor

_PROGRESS_S = 5.0
#: The gateway is told of the step this often, and forgets one that it was not told of for so long.
_RENEW_S = 1.0
_EXPIRES_S = 15.0
#: How often engines are asked to take a version that one of them could not.
_SYNC_TRIES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopParts:
    """What the loop works with; other parts are none of its business."""

    agents: Sequence[Part]
    trainer: Part
    rollouts: Sequence[Part]
    gateway: ControlClient


@dataclass(slots=True)
class RlLoop:
    """`run` plays the steps. `tend` is called while anything is waited for; it raises to end the run. After `deadline`
    (monotonic seconds) no step begins, and rollouts are given up."""

    run_id: str
    training: TrainingConfig
    parts: LoopParts
    supervisor: Supervisor
    say: Callable[[str], None]
    tend: Callable[[], None]
    deadline: float | None = None
    version: int = 0
    _url: str = ""
    _step: StepRequest | None = None
    _renewed: float = 0.0
    _said: float = field(default_factory=time.monotonic)
    _lives: dict[Part, int] = field(default_factory=dict)

    def publish_first(self) -> None:
        """Publish version 0, the checkpoint that engines start from."""
        version, _ = self._wait([self.supervisor.call(self.parts.trainer, "publish")])[0]
        assert version == 0, "engines start from the checkpoint, which is version 0"

    def run(self, done: Callable[[StepReport], None]) -> None:
        """Play all steps; `done` is told of each.

        Raises what `tend` raises, KeyboardInterrupt after the deadline, and DeploymentError.
        """
        for step in range(self.training.steps):
            self._check_deadline()
            done(self._run_step(step))

    def _run_step(self, step: int) -> StepReport:
        """Rollouts on all devices, one update, weights to every engine."""
        training, trainer, supervisor = self.training, self.parts.trainer, self.supervisor
        began = monotonic_ns()
        version_min = max(0, self.version - training.staleness_max)
        self._step = StepRequest(step=step, version_min=version_min, expires_s=_EXPIRES_S)
        self._renew(0.0)
        trajectories = self._play(step, version_min)
        rolled = monotonic_ns()
        report: StepReport = self._wait([supervisor.call(trainer, "update", step, trajectories)])[0]
        trained = monotonic_ns()
        sync = self._sync(step)
        synced = monotonic_ns()
        times = (rolled - began, trained - rolled, synced - trained, synced - began)
        self._wait([supervisor.call(trainer, "finish", step, trajectories, *times)])
        self.say(_line(step, training.steps, report, trajectories, rolled - began, trained - rolled, sync))
        return report

    def _play(self, step: int, version_min: int) -> list[Trajectory]:
        training, workers = self.training, self.parts.rollouts
        groups = [
            GroupSpec(
                group_id=f"{self.run_id}-s{step}-g{index}",
                map_seed=training.seed * 1_000_003 + step * 1_009 + index,
                size=training.group_size,
            )
            for index in range(training.groups_per_step)
        ]

        def play(share: list[GroupSpec]) -> Callable[[int], tuple[object, ...]]:
            # What a worker had played when it died is in the ledger: the trajectories played again have other names.
            return lambda tries: (
                step,
                self.version,
                version_min,
                share if not tries else [replace(group, group_id=f"{group.group_id}-r{tries}") for group in share],
            )

        calls = [
            self.supervisor.call_with(worker, "play", play(groups[index :: len(workers)]))
            for index, worker in enumerate(workers)
        ]
        played = self._wait(calls, lambda: self._progress(step))
        return [trajectory for part in played for trajectory in part]

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise KeyboardInterrupt

    def _progress(self, step: int) -> None:
        self._check_deadline()
        if time.monotonic() - self._said > _PROGRESS_S:
            self._said = time.monotonic()
            total = self.training.groups_per_step * self.training.group_size
            done = sum(worker.report or 0 for worker in self.parts.rollouts)
            self.say(f"step {step + 1}: {done} of {total} trajectories")

    def _sync(self, step: int) -> str:
        """Bring every engine to the trainer's version. One that is being started comes up with it."""
        behind: list[Part] = list(self.parts.agents)
        wire = dense = 0
        failed: list[str] = []
        for _ in range(_SYNC_TRIES):
            # Asked anew each time: a trainer that was started again has another address.
            version, url = self._wait([self.supervisor.call(self.parts.trainer, "publish")])[0]
            self._lives = {part: part.restarts for part in self.parts.agents}
            results = self._wait([self.supervisor.call(part, "sync", version, url, step) for part in behind])
            self.version, self._url = version, url
            wire += sum(result[1] for result in results)
            dense += sum(result[2] for result in results)
            failed = [result[3] for result in results if not result[0]]
            behind = [part for part, result in zip(behind, results, strict=True) if not result[0]]
            if not behind:
                break
        if len(behind) == len(self.parts.agents):
            raise DeploymentError(f"no engine could be brought to version {self.version}: {'; '.join(failed)}")
        if behind:
            self.say(f"without version {self.version} until the next one: {'; '.join(failed)}")
        return f"v{self.version} in {wire / 1024:.0f} KiB ({dense / max(1, wire):.0f}x smaller than dense)"

    # ------------------------------------------------------------------ while something is waited for

    def _wait(self, calls: Sequence[Any], also: Callable[[], None] = lambda: None) -> list[Any]:
        def tend() -> None:
            self._renew(_RENEW_S)
            self._catch_up()
            self.tend()
            also()

        return self.supervisor.wait(calls, tend)

    def _catch_up(self) -> None:
        """Tell an agent that was started again which version to come up with."""
        for part in self.parts.agents:
            if self.version and part.again_at is None and self._lives.get(part, 0) != part.restarts:
                self._lives[part] = part.restarts
                self.supervisor.call(part, "sync", self.version, self._url, None)

    def _renew(self, after_s: float) -> None:
        """Tell the gateway of the step, since it may have been started again and because it forgets."""
        if self._step is not None and time.monotonic() - self._renewed >= after_s:
            self._renewed = time.monotonic()
            try:
                self.parts.gateway.set_step(self._step)
            except OSError:
                pass  # It is away; turns say themselves how old weights may be.


def _line(
    step: int,
    steps: int,
    report: StepReport,
    trajectories: list[Trajectory],
    rollout_ns: int,
    train_ns: int,
    sync: str,
) -> str:
    tokens = sum(trajectory.output_tokens for trajectory in trajectories)
    return (
        f"step {step + 1}/{steps}: {report.accepted}/{report.trajectories} accepted, {tokens} tokens in "
        f"{rollout_ns / 1e9:.1f} s, update {train_ns / 1e9:.1f} s, {sync}"
    )
