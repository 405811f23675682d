"""The built-in RL loop: rollouts, an update, weights to every engine, step after step.

Steps overlap as far as staleness allows. The update of step k makes version k + 1 of version k, so the rollouts of step
k may begin as soon as engines hold version k - `staleness_max`: with 0 once the step before is over, with 1 while it
is trained and its weights are brought to the engines.

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
from rose.runtime.cluster import DeploymentError
from rose.runtime.rollout.groups import GroupSpec, groups_of
from rose.runtime.rollout.trajectory import Trajectory
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import StepRequest
from rose.runtime.supervision import Call, Part, Supervisor
from rose.runtime.training.reporting import StepReport

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
class _Play:
    """The rollouts of one step, which the update from version `step` will take."""

    step: int
    version_min: int
    began_ns: int
    ended_ns: int | None = None
    calls: list[Call] = field(default_factory=list)


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
    #: Steps whose rollouts have begun and that have not been trained, the oldest first.
    _plays: list[_Play] = field(default_factory=list)
    _steps_begun: int = 0
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
        for _ in range(self.training.steps):
            self._check_deadline()
            done(self._run_step())

    def _run_step(self) -> StepReport:
        """The rest of the oldest step's rollouts, one update, weights to every engine; and the rollouts of later steps
        meanwhile."""
        training, trainer, supervisor = self.training, self.parts.trainer, self.supervisor
        while self._steps_begun < min(self.version + training.staleness_max + 1, training.steps):
            self._begin(self._steps_begun)
            self._steps_begun += 1
        play = self._plays[0]
        step = play.step
        assert step == self.version, f"step {step} is to be trained from version {step}, not {self.version}"
        trajectories = [item for part in self._wait(play.calls, self._progress) for item in part]
        self._plays.remove(play)
        rolled_ns = (play.ended_ns or monotonic_ns()) - play.began_ns
        began = monotonic_ns()
        report: StepReport = self._wait([supervisor.call(trainer, "update", step, trajectories)])[0]
        trained = monotonic_ns()
        sync = self._sync(step)
        synced = monotonic_ns()
        times = (rolled_ns, trained - began, synced - trained, synced - play.began_ns)
        self._wait([supervisor.call(trainer, "finish", step, trajectories, *times)])
        self.say(_line(step, training.steps, report, trajectories, rolled_ns, trained - began, sync))
        return report

    def _begin(self, step: int) -> None:
        """Have the rollouts of a step played. Their staleness counts from the version that will be trained on them."""
        training, workers = self.training, self.parts.rollouts
        version_min = max(0, step - training.staleness_max)
        groups = groups_of(step, training, self.run_id)

        def arguments(share: list[GroupSpec]) -> Callable[[int], tuple[object, ...]]:
            # What a worker had played when it died is in the ledger: the trajectories played again have other names.
            return lambda tries: (
                step,
                step,
                version_min,
                share if not tries else [replace(group, group_id=f"{group.group_id}-r{tries}") for group in share],
            )

        play = _Play(step, version_min, monotonic_ns())
        self._plays.append(play)
        # The gateway knows of it before its turns come.
        self._announce()
        play.calls = [
            self.supervisor.call_with(worker, "play", arguments(groups[index :: len(workers)]))
            for index, worker in enumerate(workers)
        ]

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise KeyboardInterrupt

    def _progress(self) -> None:
        self._check_deadline()
        if time.monotonic() - self._said > _PROGRESS_S:
            self._said = time.monotonic()
            step = self._plays[0].step
            total = self.training.groups_per_step * self.training.group_size
            done = sum((worker.report or {}).get(step, 0) for worker in self.parts.rollouts)
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

    def _wait(self, calls: Sequence[Call], also: Callable[[], None] = lambda: None) -> list[Any]:
        def tend() -> None:
            for play in self._plays:
                if play.ended_ns is None and all(call.ended for call in play.calls):
                    play.ended_ns = monotonic_ns()
            self._announce()
            self._renew(_RENEW_S)
            self._catch_up()
            self.tend()
            also()

        return self.supervisor.wait(calls, tend, [call for play in self._plays for call in play.calls])

    def _catch_up(self) -> None:
        """Tell an agent that was started again which version to come up with."""
        for part in self.parts.agents:
            if self.version and part.again_at is None and self._lives.get(part, 0) != part.restarts:
                self._lives[part] = part.restarts
                self.supervisor.call(part, "sync", self.version, self._url, None)

    def _announce(self) -> None:
        """Tell the gateway of the oldest step that is played: turns of later ones say themselves that they want newer
        weights. One that is trained stays the gateway's until another is played."""
        play = next((play for play in self._plays if play.ended_ns is None), None)
        if play is not None and (self._step is None or self._step.step != play.step):
            self._step = StepRequest(step=play.step, version_min=play.version_min, expires_s=_EXPIRES_S)
            self._renew(0.0)

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
