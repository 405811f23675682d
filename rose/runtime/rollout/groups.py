"""The groups of a step: trajectories from one starting state, which are compared with one another."""

from __future__ import annotations

from dataclasses import dataclass

from rose.config import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupSpec:
    """Trajectories to play from one starting state."""

    group_id: str
    map_seed: int
    size: int


def groups_of(step: int, training: TrainingConfig, prefix: str) -> list[GroupSpec]:
    """All groups of a step; their names begin with `prefix`, and a step has the same maps whoever plays it."""
    return [
        GroupSpec(
            group_id=f"{prefix}-s{step}-g{index}",
            map_seed=training.seed * 1_000_003 + step * 1_009 + index,
            size=training.group_size,
        )
        for index in range(training.groups_per_step)
    ]
