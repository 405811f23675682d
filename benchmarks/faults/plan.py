"""Faults: the part, the way, and the moment."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Moment = Literal["burst", "idle"]
HostName = Literal["one", "other"]
STOPPED_SHARE = 0.15  #: Share of a process's trials that stop it for a while instead of killing it.
_STOP_MIN_S, _STOP_MAX_S = 1.0, 6.0
_AWAY_MIN_S, _AWAY_MAX_S = 5.0, 20.0  #: Seconds that a line is cut, a disk full, or a clock wrong.
_DELAY_MAX_S = 0.05  #: Delay between the awaited moment and the fault: at most about a step of either engine.


class Victim(StrEnum):
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


#: Hosts on which each part can be struck.
_PLACES: dict[Victim, tuple[HostName, ...]] = dict.fromkeys(Victim, ("one",)) | {
    Victim.AGENT: ("one", "other"),
    Victim.SERVER: ("one", "other"),
    Victim.SCHEDULER: ("one", "other"),
    Victim.NODE: ("other",),
    Victim.HOST: ("other",),
    Victim.LINE: ("other",),
    Victim.CLOCK: ("other",),
}
_AWAY_VERBS = {Victim.LINE: "cut", Victim.DISK: "full", Victim.CLOCK: "set to another hour"}
AWAY = frozenset(_AWAY_VERBS)  #: Parts that are not processes: they fail for a while, and come back unchanged.
#: Ray's own processes and whole hosts are killed, never stopped.
_KILLED_ONLY = frozenset({Victim.HEAD, Victim.NODE, Victim.HOST})


@dataclass(frozen=True, slots=True)
class Fault:
    """The part is killed if `stop_s` is None, otherwise stopped, cut, full or wrong for that long."""

    victim: Victim
    host: HostName
    moment: Moment
    delay_s: float
    stop_s: float | None = None

    @property
    def cause(self) -> str:
        if self.stop_s is None:
            return f"{self.victim} killed"
        return f"{self.victim} {_AWAY_VERBS.get(self.victim, 'stopped')}"

    def __str__(self) -> str:
        return self.cause + ("" if self.stop_s is None else f" for {self.stop_s:.1f} s") + f", host {self.host}"


def faults(seed: int, victims: tuple[Victim, ...]) -> Iterator[Fault]:
    """Yield faults without end; each part comes once on each host before any repeats."""
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
