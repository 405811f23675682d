from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from rose import events
from rose.ledger.writer import LedgerWriter

HOUR_NS = 3600 * 10**9
#: In how many goes a ledger is written.
PORTIONS = 3
E = TypeVar("E", bound=events.Event)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event on its way into a ledger: its writer, run and portion."""

    portion: int
    writer: str
    run_id: str
    event: events.Event


@dataclass(frozen=True, slots=True)
class Made:
    """Events in order; `write` puts them into a ledger, `facts` reads them."""

    recorded: tuple[Recorded, ...]

    def write(self, root: Path, first: int = 0, last: int = PORTIONS - 1) -> None:
        """Record the portions `first` to `last`, each writer's events in one go for each portion."""
        for portion in range(first, last + 1):
            portion_records = [record for record in self.recorded if record.portion == portion]
            for writer, run_id in sorted({(record.writer, record.run_id) for record in portion_records}):
                with LedgerWriter.open(root, writer, run_id, "simulated") as ledger:
                    for record in portion_records:
                        if record.writer == writer:
                            ledger.record(record.event, durable=False)

    def facts(self, kind: type[E]) -> list[tuple[str, int, str, E]]:
        seqs: Counter[str] = Counter()
        facts: dict[tuple[str, str], tuple[str, int, str, E]] = {}
        for record in sorted(self.recorded, key=lambda record: (record.portion, record.writer)):
            seq = seqs[record.writer]
            seqs[record.writer] += 1
            if not isinstance(record.event, kind):
                continue
            run_id = record.event.run_id or record.run_id
            key = (run_id, record.event.event_id or f"{record.writer}/{seq}")
            given = (record.writer, seq, run_id, record.event)
            # `seqs` has the writers in the order in which they began.
            if key not in facts or list(seqs).index(record.writer) < list(seqs).index(facts[key][0]):
                facts[key] = given
        return list(facts.values())

    def fleets(self) -> dict[str, str]:
        return {record.event.run_id or record.run_id: record.run_id for record in self.recorded}

    def tenures(self) -> list[Tenure]:
        ended = {
            run_id: 1000 * event.at_us for _, _, run_id, event in self.facts(events.Run) if event.action != "started"
        }
        ends: dict[tuple[str, str], int] = {}
        for _, _, run_id, slice_ in self.facts(events.DeviceSlice):
            ends[run_id, str(slice_.device_id)] = max(slice_.t1_ns, ends.get((run_id, str(slice_.device_id)), 0))
        by_device: dict[tuple[str, str], list[Tenure]] = {}
        present: dict[tuple[str, str], bool] = {}
        changes = sorted(self.facts(events.Device), key=lambda fact: (fact[3].t_ns, fact[3].at_us, *fact[:2]))
        for _, _, run_id, change in changes:
            name = run_id, str(change.device_id)
            tenures = by_device.setdefault(name, [])
            before = tenures[-1] if tenures else None
            same = before is not None and before.price == (change.device_class, change.pool)
            if not present.get(name) and before is not None and change.action == "left":
                # It leaves again: it was there until then.
                tenures[-1] = dataclasses.replace(before, t1_ns=change.t_ns)
            if present.get(name) and before is not None and not (change.action == "joined" and same):
                tenures[-1] = dataclasses.replace(before, t1_ns=change.t_ns)
                present[name] = False
            if change.action == "joined" and not present.get(name):
                spell = 0 if before is None else before.spell + (not same)
                tenures.append(Tenure(*name, spell, change, change.t_ns, -1))
                present[name] = True
        for name, tenures in by_device.items():
            if present.get(name):
                last = tenures[-1]
                until = max(last.t0_ns, ends.get(name, 0), ended.get(name[0], 0))
                tenures[-1] = dataclasses.replace(last, t1_ns=until)
        return [tenure for tenures in by_device.values() for tenure in tenures]

    def spell(self, run_id: str, device_id: str | None, at_ns: int) -> int:
        """Which of its pools and classes a device is in: the last one that began, and the first before any did."""
        own = [
            tenure
            for tenure in self.tenures()
            if (tenure.run_id, tenure.device_id) == (run_id, device_id) and tenure.t0_ns <= at_ns
        ]
        return max((tenure.spell for tenure in own), default=0)

    def hardware(self) -> dict[tuple[str, str, int], str]:
        return {
            (tenure.run_id, tenure.device_id, tenure.spell): tenure.joined.hardware_id
            or f"{tenure.run_id}/{tenure.device_id}"
            for tenure in self.tenures()
        }

    def parts(self) -> dict[tuple[str, str, int, int], tuple[int, int]]:
        """By run, device, spell and hour: nanoseconds for which the run held the device, and its part of them."""
        return self._divided(
            [((tenure.run_id, tenure.device_id, tenure.spell), tenure.t0_ns, tenure.t1_ns) for tenure in self.tenures()]
        )

    def read(self) -> dict[tuple[str, str, int, int], tuple[int, int]]:
        """Return `parts` of the time over which power was read."""
        readings = [
            (run_id, reading) for _, _, run_id, reading in self.facts(events.Power) if reading.power_mw is not None
        ]
        return self._divided(
            [
                (
                    (run_id, str(reading.device_id), self.spell(run_id, reading.device_id, reading.t0_ns)),
                    reading.t0_ns,
                    reading.t1_ns,
                )
                for run_id, reading in readings
            ]
        )

    def _divided(
        self, spans: list[tuple[tuple[str, str, int], int, int]]
    ) -> dict[tuple[str, str, int, int], tuple[int, int]]:
        """Spans of one hardware shared equally where they overlap, by hour: (whole, part)."""
        hardware = self.hardware()
        parts: dict[tuple[str, str, int, int], tuple[int, int]] = {}
        for name in set(hardware.values()):
            joined = _joined([span for span in spans if hardware[span[0]] == name and span[1] < span[2]])
            times = {ns for _, *ends in joined for ns in ends}
            times |= {ns for a, b in pairwise(sorted(times)) for ns in range(a - a % HOUR_NS, b, HOUR_NS) if a < ns}
            for from_ns, to_ns in pairwise(sorted(times)):
                holders = sorted(holder for holder, t0_ns, t1_ns in joined if t0_ns <= from_ns and to_ns <= t1_ns)
                for place, holder in enumerate(holders):
                    part_ns, left_ns = divmod(to_ns - from_ns, len(holders))
                    key = (*holder, from_ns // HOUR_NS)
                    whole, part = parts.get(key, (0, 0))
                    parts[key] = (whole + to_ns - from_ns, part + part_ns + (place < left_ns))
        return parts


@dataclass(frozen=True, slots=True)
class Tenure:
    """[t0_ns, t1_ns) in which a run held a device; `spell` counts the pools and classes that it had it in."""

    run_id: str
    device_id: str
    spell: int
    joined: events.Device
    t0_ns: int
    t1_ns: int

    @property
    def price(self) -> tuple[str, str]:
        return self.joined.device_class, self.joined.pool


def _joined(spans: Iterable[tuple[tuple[str, str, int], int, int]]) -> list[tuple[tuple[str, str, int], int, int]]:
    holdings: list[tuple[tuple[str, str, int], int, int]] = []
    for holder, t0_ns, t1_ns in sorted(spans):
        if holdings and holdings[-1][0] == holder and holdings[-1][2] == t0_ns:
            holdings[-1] = (holder, holdings[-1][1], t1_ns)
        else:
            holdings.append((holder, t0_ns, t1_ns))
    return holdings
