"""Where leases and engines ended that nothing closed."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import sql
from rose import events
from rose.clock import utc
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run import report
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, S
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, fleet_events, slice_, us

DEATHS_S = (300, 1000, 2000, 2601, 3500)


def test_a_lease_that_nothing_closed_and_engines_end_with_the_run_that_had_the_device(tmp_path: Path) -> None:
    """The lease's agent was killed: the runs ended before it would have expired, and the fleet works on for hours.

    Engines died before red had s0, under red, under blue, as blue's last slice had just ended, and after both runs.
    """
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in fleet_events():
            if isinstance(event, events.Lease):
                event = dataclasses.replace(event, expires_at_us=us(5400))  # noqa: PLW2901
            if not isinstance(event, events.Lease) or event.action == "granted":
                writer.record(event, durable=False)
        writer.record(slice_(3600, "t0", None, None, idle=3600), durable=False)
        for t0_s in (600, 2600):
            t0_ns = T0_NS + t0_s * S
            read = events.Power(
                device_id="s0", t0_ns=t0_ns, t1_ns=t0_ns + 1000 * S, power_mw=1, source="rapl", at_us=us(t0_s + 1000)
            )
            writer.record(read, durable=False)
        changes: list[tuple[Any, int]] = [
            change for died_s in DEATHS_S for change in (("started", died_s - 9), ("died", died_s))
        ]
        for action, at_s in changes:
            engine = events.Engine(
                action=action, engine_id="r0", device_id="s0", role="rollout", model="m", at_us=us(at_s)
            )
            writer.record(engine, durable=False)
    sections = [report.build(root, run_id, BOOK).section for run_id in RUNS]
    for name, values in (("time leased", [2000 * S, 1000 * S, 1000 * S]), ("leases open", [1, 1, 0])):
        assert [made.figure("events", name, "how many").value for made in sections] == values
    deaths = [[row["died"] for row in made.table("engines").records()] for made in sections]
    times = [utc(T0_NS + died_s * S) for died_s in DEATHS_S]
    assert [[died for died in of_run if died != "not seen"] for of_run in deaths] == [times, times[1:2], times[2:4]]
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, root, "fleet")
        set_variables(connection, run_id="fleet", period_end_ns=T0_NS + 2 * HOUR_NS, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        read_s = {row["lent"]: row["duration_ns"] // S for row in rows(connection, "borrowing/power_by_load")}
    assert read_s == {True: 1000, False: 1000}
