"""The ways of sharing a device that are compared: what is on the page, and how the rollout engine runs, in each.

To add one, add a line to `POLICIES`; nothing else knows the names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

#: What the kernel gives a process of niceness 0, and one that is to run only when nothing else does: see sched(7) and
#: `sched_prio_to_weight` in Linux; a step of niceness is a factor of 1.25.
_WEIGHT, _IDLE_WEIGHT = 1024, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How the device is shared in a round.

    `lends` starts rollout turns and keeps a lease of `compute_share` renewed, by which the rollout engine decides as
    `decides` says (`rose.runtime.policy.policies`). `nice` and `scheduling` are those of its processes.
    """

    about: str
    lends: bool = True
    decides: str = "rose"
    compute_share: float = 1.0
    nice: int = 19
    scheduling: int = os.SCHED_OTHER

    @property
    def core_share(self) -> float:
        """The rollout engine's share of a core that the serving engine wants as well, by the kernel's weights."""
        weight = _IDLE_WEIGHT if self.scheduling == os.SCHED_IDLE else _WEIGHT / 1.25**self.nice
        return weight / (weight + _WEIGHT)


SOLO, ROSE, ROSE_LAYERS, SHARE_ALL = "solo", "rose", "rose_layers", "share_all"
POLICIES = {
    SOLO: Policy(about="serving alone; the rollout engine is up and has nothing to do", lends=False),
    ROSE: Policy(
        about="slack, regret and the kernel's idle class, as a lent engine runs on CPU cores", scheduling=os.SCHED_IDLE
    ),
    ROSE_LAYERS: Policy(about="slack, regret and yields between layers alone, where no kernel takes a core away"),
    SHARE_ALL: Policy(about="no guard; the rollout engine runs like the serving one", decides="share_all", nice=0),
    "static_split": Policy(
        about="a fixed half of the device for rollouts, whatever serving does",
        decides="static_split",
        compute_share=0.5,
        nice=0,
    ),
}
#: Stages of their own: the same serving engine with the plugin, nothing lent, and without it; memory under pressure.
INSTALLED, BARE = "installed", "bare"
