from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.marginal import TERMS
from rose.pricing.borrowing.power import TOO_SHORT
from rose.pricing.borrowing.report.marginal import price
from rose.pricing.borrowing.scale_down import Span
from rose.pricing.money import PricingError
from rose.pricing.run.priced import PricedRun
from tests.pricing.conftest import printed, rests_on, section

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
    answer = section(sample_kept, price, "run", every_term, by_lease=True, gave_back=[span])
    terms, leases = answer.table("terms"), answer.table("leases").records()

    def value(key: str) -> int:
        return int(answer.figure("terms", key, "in all").value or 0)

    named = [name.replace("_", " ") for name in TERMS]
    assert [row[0] for row in terms.rows] == named
    assert sum(value(name) for name in named) == value("m")
    for name in named:
        assert sum(lease[name].value for lease in leases if name in lease) == value(name)
    assert sum(lease["m"].value for lease in leases) == value("m")
    assert sum(lease["avoidable"].value for lease in leases) == value("avoidable device time")
    assert value("charged") == value("m") + value("avoidable device time")
    assert sum(lease["borrowed"].value for lease in leases) == value("borrowed time") == 1440 * S
    assert leases[-1]["lease"] == "no lease"
    assert "413 W from idle to full load, assumed" in rests_on(answer, "energy")
    assert "[marginal; USD, replay, EXAMPLE PRICES, not yours]" in printed(answer.parts.values())
    assert "In the spans given or recorded it would not" in terms.notes[0]


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
    answer = section(sample, price, "alone", every_term)
    provision = answer.table("terms").row("provision")
    assert (provision["in all"].value, provision["per device-hour"].value) == (None, None)
    assert provision["in all"].text.startswith("not enough data")
    assert rests_on(answer, "m").startswith("not enough data for provision, which it is without; without prefix cache")
    assert answer.figure("terms", "m", "per device-hour").text == "not enough data: no rollout ran on a serving device"


def test_a_span_of_a_device_that_lends_nothing_is_refused(priced_sample: PricedRun) -> None:
    with pytest.raises(PricingError, match="'r0', which would have been given back, is no serving device"):
        price(priced_sample, [Span("r0", T0_NS, T0_NS + S)])


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
    answer = section(sample, price, "run")
    assert rests_on(answer, "prefix cache").startswith("confounded: leases were never withheld")
    watts = answer.figure("meters", "h100-sxm", "extra watts while lent")
    assert (watts.value, watts.text) == (pytest.approx(200), "200.0")
    # Four minutes are too few for an interval of power, and so for one of energy.
    assert (watts.low, watts.no_interval) == (None, TOO_SHORT)
    assert answer.figure("terms", "energy", "in all").low is None
