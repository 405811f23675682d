"""The ways of sharing a device that are compared: what is on the page, and how the rollout engine runs, in each.

To add one, add a line to `POLICIES`; nothing else knows the names. A gate that reads its policy from the page would get
it where `rounds.play` puts the lease and the budgets there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from rose.runtime.actors import LENT_NICE

#: A latency budget under which nothing is ever late: slack never holds a step.
NO_BUDGET_NS = 1 << 60
#: What the kernel gives a process of niceness 0, and one that is to run only when nothing else does: see sched(7) and
#: `sched_prio_to_weight` in Linux; a step of niceness is a factor of 1.25.
_WEIGHT, _IDLE_WEIGHT = 1024, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How the device is shared in a round.

    `lends` starts rollout turns and keeps a lease of `compute_share` renewed. `engine` is the rollout engine that gets
    the turns: only the gated one looks at the page. `slack` puts the round's latency budgets on the page, else such as
    never hold a step. `nice` and `scheduling` are those of the rollout engine's processes.
    """

    about: str
    lends: bool = True
    engine: Literal["gated", "ungated"] = "gated"
    compute_share: float = 1.0
    slack: bool = True
    nice: int = LENT_NICE
    scheduling: int = os.SCHED_OTHER

    @property
    def core_share(self) -> float:
        """The rollout engine's share of a core that the serving engine wants as well, by the kernel's weights."""
        weight = _IDLE_WEIGHT if self.scheduling == os.SCHED_IDLE else _WEIGHT / 1.25**self.nice
        return weight / (weight + _WEIGHT)


SOLO, ROSE, SHARE_ALL = "solo", "rose", "share_all"
POLICIES = {
    SOLO: Policy(about="serving alone; the rollout engine is up and has nothing to do", lends=False),
    ROSE: Policy(about="the gate, under a lease that is renewed"),
    SHARE_ALL: Policy(about="no gate; the rollout engine runs like the serving one", engine="ungated", nice=0),
    "static_split": Policy(about="a fixed half of the device for rollouts, whatever slack there is", compute_share=0.5,
                           slack=False),
}  # fmt: skip
#: A stage of its own: the same serving engine with the plugin, nothing lent, and without it.
INSTALLED, BARE = "installed", "bare"
