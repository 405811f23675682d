"""Whose the idle time is that a shared device had."""

from __future__ import annotations

from pathlib import Path

from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.charges.allocation import allocate
from tests.pricing.closing.conftest import T0_NS, S
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, slice_, us


def test_what_a_fleet_leaves_idle_in_hours_without_a_run_is_none_of_that_run_s(tmp_path: Path) -> None:
    """Red has the first hour of a dedicated device, nobody the second, and both runs a part of the third."""
    slices = [
        slice_(0, "r0", "red", None, rollout=1800, idle=1800),
        slice_(3600, "r0", None, None, idle=3600),
        slice_(7200, "r0", "red", None, rollout=300, idle=1500),
        slice_(9000, "r0", "blue", None, rollout=600, idle=1200),
    ]
    assert _shared_idle_ns(tmp_path / "ledger", slices) == {"fleet": 0, "red": (1800 + 900) * S, "blue": 1800 * S}


def test_the_idle_time_that_runs_have_sums_to_what_the_devices_left(tmp_path: Path) -> None:
    """A second that is left idle in an hour of which red worked a third and blue the rest has no whole parts."""
    slices = [slice_(0, "r0", "red", None, rollout=10, idle=1), slice_(11, "r0", "blue", None, rollout=20)]
    parts = {"fleet": 0, "red": 333_333_333, "blue": 666_666_667}
    assert _shared_idle_ns(tmp_path / "ledger", slices) == parts


def _shared_idle_ns(root: Path, slices: list[events.DeviceSlice]) -> dict[str, int]:
    """Each run's part of what a dedicated device with these slices left idle."""
    joined = events.Device(
        action="joined", device_id="r0", t_ns=T0_NS, pool="rollout", device_class="h100-sxm", at_us=us(0)
    )
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", at_us=us(0)))
        for run_id in RUNS[1:]:
            writer.record(events.Run(action="started", name="grpo", run_id=run_id, at_us=us(1)))
        for event in (joined, *slices):
            writer.record(event)
    return {
        run_id: sum(device.shared_idle_ns for device in allocate(charges.price(root, BOOK, run_id=run_id)).devices)
        for run_id in RUNS
    }
