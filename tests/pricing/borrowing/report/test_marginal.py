from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.marginal import TERMS
from rose.pricing.borrowing.report import marginal, tables
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.document import to_json
from rose.pricing.money import PricingError
from rose.pricing.table import Table
from tests.pricing.conftest import printed

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9


@pytest.fixture
def every_term(tmp_path: Path) -> Path:
    """A price book that charges all of them, at rates that do not come out even."""
    text = EXAMPLE.replace("scheduler_usd_per_lease_s = 0\n", "scheduler_usd_per_lease_s = 0.000333333333\n")
    text = text.replace("kv_recompute_usd_per_million_tokens = 0\n", "kv_recompute_usd_per_million_tokens = 7.77\n")
    path = tmp_path / "book.toml"
    path.write_text(text.replace("violation_usd = 0\n", "violation_usd = 0.111111111\n"), encoding="utf-8")
    return path


def test_every_column_sums_to_the_nano_dollar(sample_kept: Path, every_term: Path) -> None:
    span = Span("s0", T0_NS + 1, T0_NS + 1999 * S)
    document = marginal.build(sample_kept, "run", every_term, by_lease=True, gave_back=[span])
    assert sum(row.in_all.value or 0 for row in document.terms.values()) == document.total.in_all.value
    for name in TERMS:
        assert sum(lease.terms[name].value or 0 for lease in document.leases) == (
            document.terms[name].in_all.value or 0
        )
    assert sum(lease.total.value or 0 for lease in document.leases) == document.total.in_all.value
    assert sum(lease.avoidable.value or 0 for lease in document.leases) == document.avoidable.value
    assert document.charged.value == (document.total.in_all.value or 0) + (document.avoidable.value or 0)
    assert sum(lease.borrowed.value or 0 for lease in document.leases) == document.borrowed.value == 1440 * S
    assert document.leases[-1].lease_id is None
    assert "In the spans given or recorded it would not" in document.gate


def test_a_term_without_data_is_no_zero(sample: Path, every_term: Path, write_ledger: Any) -> None:
    """All requests of the sample that were not lent go to another device, so nothing compares."""
    made = [
        events.Device(action="joined", device_id="s9", t_ns=T0_NS, pool="serving", device_class="h100-sxm"),
        events.DeviceSlice(
            device_id="s9",
            t0_ns=T0_NS,
            t1_ns=T0_NS + 1800 * S,
            serving_ns=1800 * S,
            rollout_ns=0,
            train_ns=0,
            sync_ns=0,
            activation_ns=0,
            headroom_ns=0,
            idle_ns=0,
        ),
        events.Run(action="started", name="alone", at_us=T0_NS // 1000),
        events.Request(
            request_id="q",
            device_id="s9",
            lease_id="L",
            outcome="failed",
            prompt_tokens=1,
            output_tokens=0,
            ttft_ns=None,
            tpot_mean_ns=None,
            tpot_max_ns=None,
            e2e_ns=S,
            ttft_budget_ns=1,
            tpot_budget_ns=1,
            send_delay_ns=0,
            at_us=T0_NS // 1000 + 9_000_000,
        ),
    ]
    write_ledger(made, root=sample, writer="alone", run_id="alone")
    document = marginal.build(sample, "alone", every_term)
    provision = document.terms["provision"]
    assert (provision.in_all.value, provision.per_device_hour.value) == (None, None)
    assert provision.in_all.text.startswith("not enough data")
    assert document.total.rests_on.startswith(
        "not enough data for provision, which it is without; without prefix cache"
    )
    assert document.total.per_device_hour.text == "not enough data: no rollout ran on a serving device"


def test_the_same_ledger_gives_the_same_bytes(sample_kept: Path, every_term: Path) -> None:
    first = to_json(marginal.build(sample_kept, "run", every_term, by_lease=True))
    assert first == to_json(marginal.build(sample_kept, "run", every_term, by_lease=True))


@pytest.mark.long
def test_a_span_of_a_device_that_lends_nothing_is_refused(sample_kept: Path) -> None:
    with pytest.raises(PricingError, match="'r0', which would have been given back, is no serving device"):
        marginal.build(sample_kept, "run", gave_back=[Span("r0", T0_NS, T0_NS + S)])


@pytest.mark.long
def test_the_tables_say_what_each_term_rests_on(sample_kept: Path, every_term: Path) -> None:
    parts = list(tables.price(marginal.build(sample_kept, "run", every_term, by_lease=True)))
    cells = [cell for part in parts if isinstance(part, Table) for row in part.texts() for cell in row]
    assert any("413 W from idle to full load, assumed" in cell for cell in cells)
    text = printed(parts)
    assert "[marginal; USD, replay, EXAMPLE PRICES, not yours]" in text
    assert "no lease" in cells
    assert "`rose borrow decide` records them" in text
