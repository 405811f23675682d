"""How much of everything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rose.config import FleetConfig, TaskConfig
from rose.runtime.training.warm_start import WarmStart

#: Shares of the elements that a step changes.
SHARES = (0.01, 0.03, 0.1, 0.2)
#: Those that an ordinary step of RL changes: what is claimed of speed is claimed of these.
ORDINARY_SHARES = SHARES[:2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Numbers of elements, of rounds, and of versions. Elements have two bytes."""

    sizes_elements: int
    speed_elements: int
    speed_rounds: int
    #: Of the recorded training run: its steps, and the groups of eight trajectories in each.
    chain_steps: int
    chain_groups: int
    chain_start: WarmStart
    link_elements: int
    link_rounds: int
    join_elements: int
    join_distances: tuple[int, ...]
    #: Of trainers and engines; the width and the vocabulary of their model.
    shards_ranks: tuple[int, ...]
    shards_width: int
    shards_vocabulary: int
    pause_rounds: int
    #: Where the models and the recorded training runs are kept.
    cache: Path


_CACHE: Path = FleetConfig.model_fields["cache"].default.expanduser()
FULL = Scope(
    sizes_elements=1 << 24,
    speed_elements=1 << 26,
    speed_rounds=9,
    chain_steps=64,
    chain_groups=8,
    chain_start=WarmStart(task=TaskConfig()),
    link_elements=1 << 28,
    link_rounds=5,
    join_elements=1 << 22,
    join_distances=(64, 256, 1024),
    shards_ranks=(1, 2, 4, 8),
    shards_width=2048,
    shards_vocabulary=16_000,
    pause_rounds=5,
    cache=_CACHE,
)
QUICK = Scope(
    sizes_elements=1 << 20,
    speed_elements=1 << 22,
    speed_rounds=3,
    chain_steps=6,
    chain_groups=4,
    chain_start=WarmStart(task=TaskConfig()),
    link_elements=1 << 24,
    link_rounds=1,
    join_elements=1 << 20,
    join_distances=(16, 64),
    shards_ranks=(1, 4),
    shards_width=512,
    shards_vocabulary=4_000,
    pause_rounds=0,
    cache=_CACHE,
)
