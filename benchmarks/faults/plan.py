"""Faults to inject: the part that is struck, how, and when."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Moment = Literal["burst", "idle"]
HostName = Literal["one", "other"]
#: Share of the trials of a process that stop it for a while instead of ending it.
STOPPED_SHARE = 0.15
_STOP_MIN_S, _STOP_MAX_S = 1.0, 6.0
#: A line is cut, a disk full, or a clock wrong, for so long.
_AWAY_MIN_S, _AWAY_MAX_S = 5.0, 20.0
#: Between the awaited moment and the fault: at most about a step of either engine.
_DELAY_MAX_S = 0.05


class Victim(StrEnum):
    """A part of the fleet beside serving."""

    CONTROLLER = "controller"
    AGENT = "agents"
    HEAD = "Ray's head"
    NODE = "Ray's node"
    SERVER = "rollout server"
    SCHEDULER = "rollout scheduler"
    TRAINER = "trainer"
    HOST = "host"
    LINE = "line"
    DISK = "disk"
    CLOCK = "wall clock"


#: Hosts on which each part can be struck. The first host has the parts that a fleet has once.
_PLACES: dict[Victim, tuple[HostName, ...]] = dict.fromkeys(Victim, ("one",)) | {
    Victim.AGENT: ("one", "other"),
    Victim.SERVER: ("one", "other"),
    Victim.SCHEDULER: ("one", "other"),
    Victim.NODE: ("other",),
    Victim.HOST: ("other",),
    Victim.LINE: ("other",),
    Victim.CLOCK: ("other",),
}
#: Parts that are no processes: they are away for a while, and come back unchanged.
AWAY = frozenset({Victim.LINE, Victim.DISK, Victim.CLOCK})
#: Processes of Ray's own, and a whole host, are killed and never stopped.
_KILLED_ONLY = frozenset({Victim.HEAD, Victim.NODE, Victim.HOST})
#: What happens to them.
_AWAY_VERBS = {Victim.LINE: "cut", Victim.DISK: "full", Victim.CLOCK: "set to another hour"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `stop_s` None: the part is killed; otherwise it is stopped, cut, full or wrong for so many seconds."""

    victim: Victim
    host: HostName
    moment: Moment
    delay_s: float
    stop_s: float | None = None

    @property
    def cause(self) -> str:
        """Return the kind of fault, in words."""
        if self.stop_s is None:
            return f"{self.victim} killed"
        return f"{self.victim} {_AWAY_VERBS.get(self.victim, 'stopped')}"

    def __str__(self) -> str:
        return self.cause + ("" if self.stop_s is None else f" for {self.stop_s:.1f} s") + f", host {self.host}"


def faults(trials: int, seed: int, victims: tuple[Victim, ...] = tuple(Victim)) -> list[Fault]:
    """Return the faults of a run, the same for the same seed. Each part comes once a host before any comes again."""
    return list(itertools.islice(_endless(seed, victims), trials))


def _endless(seed: int, victims: tuple[Victim, ...]) -> Iterator[Fault]:
    luck = random.Random(seed)
    while True:
        deck = [(victim, host) for victim in victims for host in _PLACES[victim]]
        luck.shuffle(deck)
        for victim, host in deck:
            stop_s = luck.uniform(_STOP_MIN_S, _STOP_MAX_S) if luck.random() < STOPPED_SHARE else None
            if victim in _KILLED_ONLY:
                stop_s = None
            if victim in AWAY:
                stop_s = luck.uniform(_AWAY_MIN_S, _AWAY_MAX_S)
            moment: Moment = "burst" if luck.random() < 0.5 else "idle"
            yield Fault(victim, host, moment, luck.uniform(0, _DELAY_MAX_S), stop_s)
