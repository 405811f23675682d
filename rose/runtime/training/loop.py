"""The built-in RL loop: step k turns version k into k + 1. Updates are saved, then published, then recorded."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from rose.client import Run, Trajectory
from rose.clock import monotonic_ns
from rose.config import TrainingConfig
from rose.events import Step, Verdict
from rose.runtime.rollout.agent import trajectory_event, verdict
from rose.runtime.rollout.players import Played, Players, first_name, games_of
from rose.runtime.rollout.trajectory import Trajectory as PlayedTrajectory
from rose.runtime.training.checkpoint import Checkpoint, CheckpointError
from rose.runtime.training.train_time import TrainTime
from rose.runtime.training.trainer import StepStats, Trainer

_WAIT_S = 0.2
_AGAIN_S = 5.0  #: Interval between repeats of lost games.
#: A game with this many engine failures counts as lost once its step has other games.
_FAILED_MAX = 3


@dataclass(slots=True)
class _Rollouts:
    step: int
    games: int
    began_ns: int
    ended_ns: int | None = None
    trajectories: list[PlayedTrajectory] = field(default_factory=list)
    #: Lost games to repeat, and engine failures by first name.
    lost: list[Played] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def complete(self) -> bool:
        return len(self.trajectories) == self.games

    def take(self, played: Played) -> None:
        if played.trajectory.outcome != "lost":
            self.end(played.trajectory)
            return
        self.lost.append(played)
        self.failed[first_name(played.game.trajectory_id)] += played.trajectory.failed

    def end(self, trajectory: PlayedTrajectory) -> None:
        self.trajectories.append(trajectory)
        if self.complete:
            self.ended_ns = monotonic_ns()

    def take_lost(self) -> list[Played]:
        """Return the lost games to play again. A game that failed too often is given up if another game succeeded."""
        lost, self.lost = self.lost, []
        has_others = any(trajectory.outcome != "lost" for trajectory in self.trajectories)
        again = []
        for played in lost:
            if has_others and self.failed[first_name(played.game.trajectory_id)] >= _FAILED_MAX:
                self.end(played.trajectory)
            else:
                again.append(played)
        return again


_Updated = tuple[list[Verdict], Step]


@dataclass(slots=True, eq=False)
class TrainLoop:
    run: Run
    training: TrainingConfig
    trainer: Trainer
    players: Players
    checkpoint: Checkpoint
    train_time: TrainTime
    say: Callable[[str], None]
    done: Callable[[Step], None]
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="rose-train"))
    _rollouts: dict[int, _Rollouts] = field(default_factory=dict)
    _unrecorded: list[Trajectory] = field(default_factory=list)
    _recorded: float = field(default_factory=time.monotonic)
    _said: float = field(default_factory=time.monotonic)
    _repeated: float = field(default_factory=time.monotonic)

    def train(self) -> None:
        try:
            self._begin()
            while self.trainer.version < self.training.steps:
                self._run_step(self.trainer.version)
        finally:
            self._thread.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        update = self.checkpoint.load_update(self.trainer)
        version = self.trainer.version
        if self.run.version is not None and self.run.version > version:
            problem = f"{self.checkpoint.folder} is at version {version}, but the run at version {self.run.version}"
            raise CheckpointError(f"{problem}: give the run's last checkpoint")
        publish_ns = self._publish()
        if update is not None:
            judgements, step = update
            self.say(f"continuing after step {step.step + 1} of {self.training.steps}")
            self._finish((judgements, _with_publish_time(step, publish_ns)))

    def _run_step(self, step: int) -> None:
        for number in range(step, min(step + self.training.staleness_max + 1, self.training.steps)):
            if number not in self._rollouts:
                self._play(number)
        rollouts = self._rollouts[step]
        while not rollouts.complete:
            self._tend(_WAIT_S)
        del self._rollouts[step]
        self._record_trajectories()  # Trajectories are recorded before their training.
        updating = self._thread.submit(self._update, rollouts)
        while not updating.done():
            self._tend(_WAIT_S, updating)
        self._finish(updating.result(), rollouts)

    def _play(self, step: int) -> None:
        # The ledger has an earlier client's untrained trajectories under other names.
        prefix = self.run.run_id if self.run.fence <= 1 else f"{self.run.run_id}-r{self.run.fence}"
        games = games_of(step, self.training, prefix)
        self._rollouts[step] = _Rollouts(step, len(games), monotonic_ns())
        self.players.play(step, self._version_min(step), games)

    def _version_min(self, step: int) -> int:
        return max(0, step - self.training.staleness_max)

    def _play_lost(self) -> None:
        self._repeated = time.monotonic()
        for rollouts in self._rollouts.values():
            if lost := rollouts.take_lost():
                step, reason = rollouts.step, lost[-1].trajectory.reason
                again = f"{len(lost)} of {rollouts.games} trajectories were lost and start again"
                self.say(f"step {step + 1}: {again}: {reason}")
                self.players.play_again(step, self._version_min(step), [played.game for played in lost])

    def _tend(self, timeout_s: float, beside: Future[_Updated] | None = None) -> None:
        self.run.check()
        for played in self.players.collect(timeout_s if beside is None else min(timeout_s, _WAIT_S / 4)):
            trajectory = played.trajectory
            self._rollouts[trajectory.step].take(played)
            # A game that only waited for an engine leaves no record.
            if trajectory.outcome != "lost" or trajectory.failed or trajectory.attempts or trajectory.turns:
                self._unrecorded.append(trajectory_event(trajectory, trajectory.step))
        now = time.monotonic()
        if now - self._recorded >= 1.0:
            self._record_trajectories()
        if now - self._repeated >= _AGAIN_S:
            self._play_lost()
        if now - self._said >= 5.0 and beside is None:
            self._said = now
            step, rollouts = min(self._rollouts.items())
            self.say(f"step {step + 1}: {len(rollouts.trajectories)} of {rollouts.games} trajectories")

    def _record_trajectories(self) -> None:
        self._recorded = time.monotonic()
        if self._unrecorded:
            self.run.record(*self._unrecorded)
            self._unrecorded.clear()

    def _update(self, rollouts: _Rollouts) -> _Updated:
        began_ns = monotonic_ns()
        # A fixed order makes an update depend only on the games.
        trajectories = sorted(rollouts.trajectories, key=lambda trajectory: _place(trajectory.trajectory_id))
        with self.train_time.span():
            stats = self.trainer.update(trajectories)
            event = step_event(
                rollouts.step,
                stats,
                trajectories,
                rollout_ns=(rollouts.ended_ns or began_ns) - rollouts.began_ns,
                train_ns=monotonic_ns() - began_ns,
                total_ns=monotonic_ns() - rollouts.began_ns,
            )
            judgements = verdicts(stats, trajectories)
            self.checkpoint.save_update(self.trainer, judgements, event)
        return judgements, _with_publish_time(event, self._publish())

    def _publish(self) -> int:
        began_ns = monotonic_ns()
        self.run.publish(self.trainer.weights(), self.trainer.version)
        return monotonic_ns() - began_ns

    def _finish(self, updated: _Updated, rollouts: _Rollouts | None = None) -> None:
        judgements, step = updated
        if (event := self.checkpoint.load_step(step.step)) is None:
            event = step
            self.checkpoint.save_step(event)
        self.run.record(*judgements, event)
        if rollouts is not None:
            tokens = sum(trajectory.output_tokens for trajectory in rollouts.trajectories)
            self.say(step_line(event, self.training.steps, tokens))
        self.done(event)


def _with_publish_time(step: Step, publish_ns: int) -> Step:
    return replace(step, sync_ns=publish_ns, total_ns=step.total_ns + publish_ns)


def _place(trajectory_id: str) -> tuple[str, ...]:
    return tuple(part.zfill(6) for part in first_name(trajectory_id).split("-"))


def step_event(
    step: int,
    stats: StepStats,
    trajectories: Sequence[PlayedTrajectory],
    *,
    rollout_ns: int,
    train_ns: int,
    total_ns: int,
) -> Step:
    """Return a step's event, without lost trajectories. `total_ns` is the time until the step's training ended."""
    trajectories = _not_lost(trajectories)
    stated = {name: getattr(stats, name) for name in ("loss", "entropy", "kl", "grad_norm")}
    # A diverged update must not stop its run.
    means: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in stated.items()}
    return Step(
        policy_version=stats.version,
        step=step,
        groups=len({trajectory.group_id for trajectory in trajectories}),
        trajectories=len(trajectories),
        trajectories_accepted=sum(trajectory.accepted for trajectory in trajectories),
        reward_mean=sum(trajectory.reward for trajectory in trajectories) / max(1, len(trajectories)),
        **means,
        tokens_trained=stats.tokens_trained,
        rollout_ns=rollout_ns,
        train_ns=train_ns,
        sync_ns=0,
        total_ns=total_ns,
    )


def verdicts(stats: StepStats, trajectories: Sequence[PlayedTrajectory]) -> list[Verdict]:
    stale = set(stats.stale)
    return [verdict(trajectory, stale=trajectory.trajectory_id in stale) for trajectory in _not_lost(trajectories)]


def step_line(event: Step, steps: int, output_tokens: int) -> str:
    return (
        f"step {event.step + 1}/{steps}: {event.trajectories_accepted}/{event.trajectories} accepted, "
        f"{output_tokens} tokens in {event.rollout_ns / 1e9:.1f} s, update {event.train_ns / 1e9:.1f} s, "
        f"v{event.policy_version} published"
    )


def _not_lost(trajectories: Sequence[PlayedTrajectory]) -> list[PlayedTrajectory]:
    return [trajectory for trajectory in trajectories if trajectory.outcome != "lost"]
