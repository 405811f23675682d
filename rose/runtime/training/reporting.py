"""What is told of an RL step: its event, its verdicts, its line on the screen. Importing this imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rose.events import Step, Verdict
from rose.runtime.rollout.agent import verdict
from rose.runtime.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from rose.runtime.training.trainer import StepStats


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Of a step's rollouts, its update and its sync, and from the begin of the first to the end of the last."""

    rollout_ns: int
    train_ns: int
    sync_ns: int
    total_ns: int


def step_event(step: int, stats: StepStats, trajectories: Sequence[Trajectory], times: StepTimes) -> Step:
    """The step that the update `stats` closed. Lost trajectories are no part of it: nobody judged them."""
    trajectories = _not_lost(trajectories)
    return Step(
        policy_version=stats.version,
        step=step,
        groups=len({trajectory.group_id for trajectory in trajectories}),
        trajectories=len(trajectories),
        trajectories_accepted=sum(trajectory.correct for trajectory in trajectories),
        reward_mean=sum(trajectory.reward for trajectory in trajectories) / max(1, len(trajectories)),
        # An update that diverged is no reason to stop the run that has to show it.
        loss=_finite(stats.loss),
        entropy=_finite(stats.entropy),
        kl=_finite(stats.kl),
        grad_norm=_finite(stats.grad_norm),
        tokens_trained=stats.tokens_trained,
        rollout_ns=times.rollout_ns,
        train_ns=times.train_ns,
        sync_ns=times.sync_ns,
        total_ns=times.total_ns,
    )


def verdicts(stats: StepStats, trajectories: Sequence[Trajectory]) -> list[Verdict]:
    """One for each trajectory that was not lost, whether the update took it or dropped it for age."""
    stale = set(stats.stale)
    return [verdict(trajectory, stale=trajectory.trajectory_id in stale) for trajectory in _not_lost(trajectories)]


def step_line(event: Step, steps: int, output_tokens: int, published: str) -> str:
    """One line on a step that is over."""
    return (
        f"step {event.step + 1}/{steps}: {event.trajectories_accepted}/{event.trajectories} accepted, "
        f"{output_tokens} tokens in {event.rollout_ns / 1e9:.1f} s, update {event.train_ns / 1e9:.1f} s, {published}"
    )


def _not_lost(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [trajectory for trajectory in trajectories if trajectory.outcome != "lost"]


def _finite(value: float | None) -> float | None:
    """None for what is no number."""
    return value if value is not None and math.isfinite(value) else None
