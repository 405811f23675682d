"""The amounts that each part measures."""

from dataclasses import dataclass
from pathlib import Path

from rose.config import FleetConfig

ORDINARY_SHARES = (0.01, 0.03)  #: Shares of the elements that an ordinary step of RL changes.
#: The folder of models and recorded training runs.
CACHE: Path = FleetConfig.model_fields["cache"].default.expanduser()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Numbers of elements, of rounds, and of versions. Elements have two bytes."""

    cases_elements: int
    cases_rounds: int
    cases_steps: int  #: AdamW steps of SmolLM2 at each rate.
    link_elements: int
    link_rounds: int
    join_elements: int
    join_distances: tuple[int, ...]
    shards_ranks: tuple[int, ...]  #: Ranks of trainers and of engines, and the sizes of their model.
    shards_width: int
    shards_vocabulary: int
    pause_rounds: int


FULL = Scope(
    cases_elements=1 << 22,
    cases_rounds=3,
    cases_steps=2,
    link_elements=1 << 28,
    link_rounds=5,
    join_elements=1 << 22,
    join_distances=(64, 256, 1024),
    shards_ranks=(1, 2, 4, 8),
    shards_width=2048,
    shards_vocabulary=16_000,
    pause_rounds=5,
)
QUICK = Scope(
    cases_elements=1 << 18,
    cases_rounds=1,
    cases_steps=0,
    link_elements=1 << 24,
    link_rounds=1,
    join_elements=1 << 20,
    join_distances=(16, 64),
    shards_ranks=(1, 4),
    shards_width=512,
    shards_vocabulary=4_000,
    pause_rounds=0,
)
