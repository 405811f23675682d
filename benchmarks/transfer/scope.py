"""The amounts that each part measures."""

from dataclasses import dataclass

ORDINARY_SHARES = (0.01, 0.03)  #: Shares of the elements that an ordinary step of RL changes.


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Numbers of elements, of rounds, and of versions. Elements have two bytes."""

    cases_elements: int = 1 << 22
    cases_rounds: int = 9
    cases_steps: int = 2  #: AdamW steps of SmolLM2 at each rate.
    link_elements: int = 1 << 28
    link_rounds: int = 5
    join_elements: int = 1 << 22
    join_distances: tuple[int, ...] = (64, 256, 1024)
    shards_ranks: tuple[int, ...] = (1, 2, 4, 8)  #: Ranks of trainers and of engines, and the sizes of their model.
    shards_width: int = 2048
    shards_vocabulary: int = 16_000
    pause_rounds: int = 5


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
