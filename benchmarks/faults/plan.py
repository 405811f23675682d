"""Which process is struck in each trial, how, and when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Literal

Moment = Literal["burst", "idle"]
#: This share of the trials stops a process for a while instead of ending it.
STOPPED_SHARE = 0.15
_STOP_MIN_S, _STOP_MAX_S = 1.0, 6.0
#: From the moment that was waited for to the signal: at most about a step of either engine.
_DELAY_MAX_S = 0.05


class Victim(StrEnum):
    """A part of the deployment that is not serving."""

    SCHEDULER = "rollout scheduler"
    SERVER = "rollout server"
    AGENT = "agent"
    GATEWAY = "gateway"
    WORKER = "rollout worker"


@dataclass(frozen=True, slots=True)
class Fault:
    """One blow. `stop_s` None: SIGKILL; otherwise SIGSTOP, and SIGCONT after so many seconds."""

    victim: Victim
    moment: Moment
    delay_s: float
    stop_s: float | None = None

    def __str__(self) -> str:
        how = "killed" if self.stop_s is None else f"stopped for {self.stop_s:.1f} s"
        return f"{self.victim} {how}"


def faults(trials: int, seed: int) -> list[Fault]:
    """The faults of a run, the same for the same seed. No victim and moment comes again before all the others came."""
    luck = random.Random(seed)
    planned: list[Fault] = []
    while len(planned) < trials:
        deck: list[tuple[Victim, Moment]] = list(product(Victim, ("burst", "idle")))
        luck.shuffle(deck)
        for victim, moment in deck:
            stop_s = luck.uniform(_STOP_MIN_S, _STOP_MAX_S) if luck.random() < STOPPED_SHARE else None
            planned.append(Fault(victim, moment, luck.uniform(0, _DELAY_MAX_S), stop_s))
    return planned[:trials]
