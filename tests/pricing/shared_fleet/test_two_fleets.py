import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import sql
from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import run_report
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run.priced import priced
from tests.pricing import any_event
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, S, us
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, fleet_events, joined, slice_


def test_engines_of_two_fleets_that_are_called_alike_are_two_engines(tmp_path: Path) -> None:
    """Red continues on a fleet with the same device and engine names; blue then has the first fleet's.

    The engines hold KV memory in all of red's time but for 100 s between each death and start.
    """
    root = tmp_path / "ledger"
    engine: dict[str, Any] = {"engine_id": "r0", "device_id": "s0", "role": "rollout", "model": "m"}
    of_start: dict[str, Any] = {"kv_bytes": 1 << 30, "memory_mechanism": "budget"}
    for fleet, begin_s, deaths_s in (("f1", 0, (500, 1500)), ("f2", 1000, (1400,))):
        with LedgerWriter.open(root, fleet, fleet) as writer:
            writer.record(events.Run(action="started", name="lab", at_us=us(0)))
            writer.record(events.Run(action="started", name="grpo", run_id="red", at_us=us(begin_s)), durable=True)
            writer.record(joined())
            writer.record(events.Engine(action="started", at_us=us(begin_s), **engine, **of_start))
            for died_s in deaths_s:
                writer.record(events.Engine(action="died", at_us=us(died_s), **engine))
                writer.record(events.Engine(action="started", at_us=us(died_s + 100), **engine, **of_start))
            writer.record(slice_(begin_s, "s0", "red", None, rollout=450))
            writer.record(slice_(begin_s + 450, "s0", "red", None, rollout=550))
            if fleet == "f1":
                writer.record(slice_(1000, "s0", "blue", "L", rollout=1000))
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "red")
        set_variables(connection, run_id="red", period_end_ns=T0_NS + HOUR_NS, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        assert [row["byte_ns"] for row in rows(connection, "borrowing/held_memory")] == [(1 << 30) * 1800 * S]


def test_devices_of_two_fleets_that_are_called_alike_are_two_devices(tmp_path: Path) -> None:
    """Red continues on another fleet; the first one's device leaves while red uses the other of that name."""
    root = tmp_path / "ledger"
    for fleet, begin_s in (("f1", 0), ("f2", 1000)):
        with LedgerWriter.open(root, fleet, fleet) as writer:
            writer.record(events.Run(action="started", name="lab", at_us=us(0)))
            writer.record(events.Run(action="started", name="grpo", run_id="red", at_us=us(begin_s)))
            if fleet == "f2":
                writer.record(joined(pool="train"))
            writer.record(joined(at_s=begin_s))
            for part_s, seconds in ((0, 600), (600, 400)):
                writer.record(slice_(begin_s + part_s, "s0", "red", f"{fleet}-L", rollout=seconds))
            if fleet == "f1":
                writer.record(joined(at_s=1500, action="left"))
    with priced(Ledger(root), "red", BOOK) as run:
        assert run.borrow.borrowed_ns == 2000 * S
        worked = {(device.fleet_run_id, device.bucket_ns["rollout"]) for device in run.allocation.devices}
    assert worked == {("f1", 1000 * S), ("f2", 1000 * S)}


def test_leases_of_two_fleets_that_are_called_alike_are_two_leases(tmp_path: Path) -> None:
    """Red has 500 s of the first fleet's lease, then blue; of the other's all, and it is open after its last slice.

    The third fleet's names no slice, and counts up to its expiry.
    """
    root = tmp_path / "ledger"
    for fleet, begin_s, lasts_s, slices in (
        ("f1", 0, 1000, (("red", "L", 500), ("blue", "L", 500))),
        ("f2", 1000, 3000, (("red", "L", 400), ("red", "L", 600))),
        ("f3", 3000, 100, (("red", None, 100),)),
    ):
        lease: dict[str, Any] = {"lease_id": "L", "device_id": f"{fleet}-s0", "expires_at_us": us(begin_s + lasts_s)}
        granted = events.Lease(
            action="granted", rl_run_id="red", kv_budget_bytes=1, compute_share=1.0, at_us=us(begin_s), **lease
        )
        with LedgerWriter.open(root, fleet, fleet) as writer:
            writer.record(events.Run(action="started", name="lab", at_us=us(0)))
            writer.record(events.Run(action="started", name="grpo", run_id="red", at_us=us(begin_s)))
            writer.record(joined(f"{fleet}-s0"))
            writer.record(granted)
            from_s = begin_s
            for run_id, lease_id, seconds in slices:
                writer.record(slice_(from_s, f"{fleet}-s0", run_id, lease_id, rollout=seconds))
                from_s += seconds
            if fleet == "f1":
                writer.record(dataclasses.replace(granted, action="released", at_us=us(lasts_s)))
    counts = {
        row["what"]: row["how many"].value
        for row in run_report.build(Ledger(root), "red", BOOK).section.table("events").records()
    }
    assert [counts[f"leases {name}"] for name in ("granted", "released", "open")] == [3, 1, 2]
    assert counts["time leased"] == (500 + 1000 + 100) * S


DEATHS_S = (300, 1000, 2000, 2601, 3500)


def test_a_lease_that_nothing_closed_and_engines_end_with_the_run_that_had_the_device(tmp_path: Path) -> None:
    """The lease's agent was killed: the runs end before its expiry, and the fleet works for hours.

    Engines died before red had s0, under red, under blue, at the end of blue's last slice, and after both runs.
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
            writer.record(any_event.power(t0_ns=t0_ns, t1_ns=t0_ns + 1000 * S, power_mw=1), durable=False)
        changes: list[tuple[Any, int]] = [
            change for died_s in DEATHS_S for change in (("started", died_s - 9), ("died", died_s))
        ]
        for action, at_s in changes:
            engine = any_event.engine(action=action, engine_id="r0", device_id="s0", at_us=us(at_s))
            writer.record(engine, durable=False)
    sections = [run_report.build(Ledger(root), run_id, BOOK).section for run_id in RUNS]
    for name, values in (("time leased", [2000 * S, 1000 * S, 1000 * S]), ("leases open", [1, 1, 0])):
        assert [made.figure("events", name, "how many").value for made in sections] == values
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "fleet")
        set_variables(connection, run_id="fleet", period_end_ns=T0_NS + 2 * HOUR_NS, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        rows(connection, "borrowing/holdout_windows")
        (read,) = rows(connection, "borrowing/power_by_window")
    assert (read["duration_ns"], read["leased_ns"]) == (2000 * S, 1000 * S)
