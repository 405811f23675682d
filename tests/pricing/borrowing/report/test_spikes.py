from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.report.spikes import OBSERVED, ON_DEDICATED, R_STAR, WINDOW, WINDOWS, spikes
from rose.pricing.figures import Figure
from tests.pricing.conftest import printed, section

T0_NS = 1_780_272_000 * 10**9
S = 10**9


def minutes(made: Sequence[events.Event], count: int) -> list[events.Event]:
    """The sample with its serving device's slices cut into minutes: load rises, and demand falls."""
    kept = [event for event in made if not isinstance(event, events.DeviceSlice) or event.device_id != "s0"]
    for n in range(count):
        serving_s, rollout_s = n, (59 - n) // 2
        kept.append(
            events.DeviceSlice(
                device_id="s0",
                lease_id="L1",
                t0_ns=T0_NS + n * 60 * S,
                t1_ns=T0_NS + (n + 1) * 60 * S,
                serving_ns=serving_s * S,
                rollout_ns=rollout_s * S,
                train_ns=0,
                sync_ns=0,
                activation_ns=0,
                headroom_ns=0,
                idle_ns=(60 - serving_s - rollout_s) * S,
            )
        )
    return kept


def test_every_figure_says_that_it_is_simulated(sample_made: Sequence[events.Event], write_ledger: Any) -> None:
    answer = section(write_ledger(minutes(sample_made, 60)), spikes, "run")
    windows = {row["what"]: row["value"] for row in answer.table("windows").records()}
    assert (windows[WINDOWS].value, windows[WINDOW].value) == (60, 60 * S)
    # Demand falls by half a step for each step of load, so two windows at a time share a rank.
    assert windows[OBSERVED].value == pytest.approx(-1, abs=0.01)
    coupled = answer.table("coupled")
    for row in coupled.records():
        figures = [cell for cell in row.values() if isinstance(cell, Figure)]
        assert {(figure.stamp.provenance, figure.basis) for figure in figures} == {("simulated", "simulated")}
    assert windows[ON_DEDICATED].stamp.provenance == "replay"
    assert [row[0] for row in coupled.rows] == ["0", "0.25", "0.5", "0.75", "1"]
    worst = coupled.row("1")
    # Sorted, n serving seconds meet n // 2 rollout seconds: from n = 41 on they are more than a minute.
    beyond = [max(0, n + n // 2 - 60) for n in range(60)]
    assert worst["fits"].value == pytest.approx(sum(x == 0 for x in beyond) / 60)
    assert worst["wasted"].value == pytest.approx(sum(beyond) / sum(n // 2 for n in range(60)))
    assert coupled.row("0")["per M answer tokens (C3)"].value is not None
    assert answer.text("says").startswith("none in [0, 1]: borrowing is cheaper")
    assert "[marginal; USD, simulated, EXAMPLE PRICES" in printed(answer.parts.values())


def test_too_little_is_said(sample: Path, write_ledger: Any) -> None:
    device = events.Device(action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h100-sxm")
    made = [
        events.Run(action="started", name="short", at_us=T0_NS // 1000),
        device,
        events.DeviceSlice(
            device_id="s0",
            t0_ns=T0_NS,
            t1_ns=T0_NS + 60 * S,
            serving_ns=60 * S,
            rollout_ns=0,
            train_ns=0,
            sync_ns=0,
            activation_ns=0,
            headroom_ns=0,
            idle_ns=0,
        ),
    ]
    write_ledger(made, root=sample, writer="short", run_id="short")
    answer = section(sample, spikes, "short")
    assert "coupled" not in answer.parts
    assert answer.figure("windows", R_STAR).value is None
    assert answer.text("says") == "not enough data: no token was made on borrowed devices"
