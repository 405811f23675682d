from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.report import alternatives, marginal, tables
from rose.pricing.borrowing.report.common import BREAK_EVEN_CASH, BREAK_EVEN_TIME
from tests.pricing.conftest import printed

T0_NS = 1_780_272_000 * 10**9
S = 10**9


@pytest.mark.long
def test_meters_are_shown_where_there_are_any(sample: Path, write_ledger: Any) -> None:
    made: list[events.Event] = [
        events.Device(action="joined", device_id="s1", t_ns=T0_NS, pool="serving", device_class="h100-sxm"),
        events.DeviceSlice(
            device_id="s1",
            t0_ns=T0_NS,
            t1_ns=T0_NS + 240 * S,
            serving_ns=96 * S,
            rollout_ns=0,
            train_ns=0,
            sync_ns=0,
            activation_ns=0,
            headroom_ns=0,
            idle_ns=144 * S,
        ),
    ]
    for minute in range(4):
        t0_ns = T0_NS + minute * 60 * S
        made += [
            events.Power(device_id=name, t0_ns=t0_ns, t1_ns=t0_ns + 60 * S, power_mw=power + minute, source="rapl")
            for name, power in (("s0", 500_000), ("s1", 300_000))
        ]
    write_ledger(made, root=sample, writer="meters")
    text = printed(tables.price(marginal.build(sample, "run")))
    assert "Power meters" in text
    assert "confounded: leases were never withheld" in text
    assert "measured: confounded" not in text
    assert "+200.0 W" in text
    # Four minutes are too few for an interval of power, and so for one of energy.
    assert "+200.0 W -" in text
    assert "No interval: power of h100-sxm: read for too short a time" in text


@pytest.mark.long
def test_no_figure_goes_without_its_view_and_provenance(sample_kept: Path) -> None:
    text = printed(tables.compare(alternatives.build(sample_kept, "run")))
    assert text.count("; USD, replay, EXAMPLE PRICES, not yours]") == 4
    assert "Price book example" in text
    assert "2026-06-01T00:00:00.000000Z to 2026-06-01T01:00:00.000000Z" in text


def test_every_break_even_has_its_definition_in_the_glossary() -> None:
    glossary = (Path(__file__).parents[4] / "docs" / "glossary.md").read_text(encoding="utf-8")
    for name in (BREAK_EVEN_TIME, BREAK_EVEN_CASH):
        assert glossary.count(f"| {name} | ") == 1
