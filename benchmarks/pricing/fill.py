"""Filling a ledger with a fleet's events, as its hosts would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
    with writers(root) as hosts:
        return go_on(hosts, fleet, fleet.seconds + number * step_s, step_s)


@contextmanager
def writers(root: Path) -> Iterator[list[LedgerWriter]]:
    """The hosts' writers, open."""
    with ExitStack() as stack:
        yield [stack.enter_context(_writer(root, host)) for host in range(HOSTS)]


def go_on(hosts: Sequence[LedgerWriter], fleet: Fleet, first_s: int, seconds: int) -> int:
    """Record so many seconds of the fleet from one on; returns the number of events."""
    tables = [fleet.batch(host, first_s, first_s + seconds) for host in range(HOSTS)]
    for writer, table in zip(hosts, tables, strict=True):
        writer.append(table)
    return sum(table.num_rows for table in tables)


def close_epochs(root: Path) -> None:
    """Begin a new epoch for every host, so that what was written so far can be merged."""
    for host in range(HOSTS):
        tail = segments.recover(root, f"host-{host}")
        assert tail is not None
        segments.begin_epoch(root, tail)


def _writer(root: Path, host: int) -> LedgerWriter:
    return LedgerWriter.open(root, f"host-{host}", RUN, "simulated")
