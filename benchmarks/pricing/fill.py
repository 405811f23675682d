"""Filling a ledger with a fleet's events, as its hosts would."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pricing.traffic import HOSTS, Fleet
from rose.ledger import segments
from rose.ledger.writer import LedgerWriter

RUN = "r"
#: About as many events go into one table.
_BATCH = 20_000


def fill(root: Path, fleet: Fleet) -> int:
    """Record the whole time of the fleet, host by host; returns the number of events."""
    events = 0
    step_s = max(1, round(_BATCH * HOSTS * fleet.seconds / fleet.events))
    for host in range(HOSTS):
        with _writer(root, host) as writer:
            if host == 0:
                fleet.begin(writer.record)
                events += fleet.devices + 1
            for first_s in range(0, fleet.seconds, step_s):
                table = fleet.batch(host, first_s, min(first_s + step_s, fleet.seconds))
                writer.append(table, durable=False)
                events += table.num_rows
    return events


def more(root: Path, fleet: Fleet, events: int, number: int) -> int:
    """Record the `number`th time after that in which about so many events happen; returns how many it was."""
    step_s = max(1, round(events * fleet.seconds / fleet.events))
    first_s = fleet.seconds + number * step_s
    appended = 0
    for host in range(HOSTS):
        with _writer(root, host) as writer:
            table = fleet.batch(host, first_s, first_s + step_s)
            writer.append(table)
            appended += table.num_rows
    return appended


def close_epochs(root: Path) -> None:
    """Begin a new epoch for every host, so that what was written so far can be merged."""
    for host in range(HOSTS):
        tail = segments.recover(root, f"host-{host}")
        assert tail is not None
        segments.begin_epoch(root, tail)


def _writer(root: Path, host: int) -> LedgerWriter:
    return LedgerWriter.open(root, f"host-{host}", RUN, "simulated")
