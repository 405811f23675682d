"""Whose the idle time is that a shared device had."""

from __future__ import annotations

from pathlib import Path

from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.charges.allocation import allocate
from tests.pricing.closing.conftest import T0_NS, S
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, slice_, us


def test_the_idle_time_that_runs_have_of_a_shared_device(tmp_path: Path) -> None:
    """Each hour's idle time is divided by the work in it; what a fleet leaves idle in an hour without a run is not.

    Of d0 red has the first hour, nobody the second, and both runs a part of the third. A second of d1 is left idle in
    an hour of which red worked a third and blue the rest, so it has no whole parts.
    """
    slices = [
        slice_(0, "d0", "red", None, rollout=1800, idle=1800),
        slice_(3600, "d0", None, None, idle=3600),
        slice_(7200, "d0", "red", None, rollout=300, idle=1500),
        slice_(9000, "d0", "blue", None, rollout=600, idle=1200),
        slice_(0, "d1", "red", None, rollout=10, idle=1),
        slice_(11, "d1", "blue", None, rollout=20),
    ]
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", at_us=us(0)))
        for run_id in RUNS[1:]:
            writer.record(events.Run(action="started", name="grpo", run_id=run_id, at_us=us(1)))
        for device_id in ("d0", "d1"):
            joined = events.Device(
                action="joined", device_id=device_id, t_ns=T0_NS, pool="rollout", device_class="h100-sxm", at_us=us(0)
            )
            writer.record(joined)
        for event in slices:
            writer.record(event)
    parts = {
        run_id: {
            device.device_id: device.shared_idle_ns
            for device in allocate(charges.price(root, BOOK, run_id=run_id)).devices
        }
        for run_id in RUNS[1:]
    }
    assert parts == {
        "red": {"d0": (1800 + 900) * S, "d1": 333_333_333},
        "blue": {"d0": 1800 * S, "d1": 666_666_667},
    }
