"""How much of everything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rose.config import FleetConfig

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
    link_elements: int
    link_rounds: int
    join_elements: int
    join_distances: tuple[int, ...]
    pause_rounds: int
    #: Where the models are kept.
    cache: Path


_CACHE: Path = FleetConfig.model_fields["cache"].default.expanduser()
FULL = Scope(
    sizes_elements=1 << 24,
    speed_elements=1 << 26,
    speed_rounds=9,
    link_elements=1 << 28,
    link_rounds=5,
    join_elements=1 << 22,
    join_distances=(64, 256, 1024),
    pause_rounds=5,
    cache=_CACHE,
)
QUICK = Scope(
    sizes_elements=1 << 20,
    speed_elements=1 << 22,
    speed_rounds=3,
    link_elements=1 << 24,
    link_rounds=1,
    join_elements=1 << 20,
    join_distances=(16, 64),
    pause_rounds=0,
    cache=_CACHE,
)
