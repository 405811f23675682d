from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger import catalog
from rose.pricing import formulas, pricebook
from rose.pricing.allocation import allocate
from rose.pricing.marginal import Marginal, extra_power_mw, marginal, provision
from rose.pricing.pricebook import PriceBook, PriceBookError

EXAMPLE = resources.files("rose.pricing.books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9


def book(*changes: tuple[str, str]) -> PriceBook:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return pricebook.parse(text, "book.toml")


def priced(root: Path, prices: PriceBook) -> Marginal:
    with closing(catalog.connect(root)) as connection:
        return marginal(connection, "run", allocate(connection, "run", prices), prices)


def test_the_sample_by_hand(sample: Path) -> None:
    found = priced(sample, book())
    assert found.borrowed_ns == 1440 * S
    # (680 - 267) W over 1584 s of rollout, sync and activation; PUE 1.25 at $0.10/kWh.
    assert found.terms["energy"].usd == Fraction(413 * 1584) * Fraction(5, 4) / 3_600_000 / 10
    assert (found.terms["energy"].basis, found.terms["provision"].basis) == ("assumed", "price book")
    # 2 GB to the serving device; what the dedicated one received is not the borrow's.
    assert found.terms["transfer"].usd == Fraction(4, 100)
    assert found.usd == sum(term.usd for term in found.terms.values())
    assert found.usd_per_device_hour() == found.usd / Fraction(1440, 3600)
    energy = formulas.energy_usd_per_device_s(413 * 1584 / 1440, 1.25, 0.10)
    transfer = formulas.transfer_usd_per_device_s(2, 0.02, 1440)
    assert float(found.usd / 1440) == pytest.approx(energy + transfer)


def test_every_term_is_charged_when_the_book_sets_it(sample: Path) -> None:
    prices = book(
        ("scheduler_usd_per_lease_s = 0", "scheduler_usd_per_lease_s = 0.001"),
        ("kv_recompute_usd_per_million_tokens = 0", "kv_recompute_usd_per_million_tokens = 2"),
        ("violation_usd = 0", "violation_usd = 0.5"),
    )
    found = priced(sample, prices)
    # L1 to L3 lasted 3000 s; L4 is open and counts to the end of the hour, not to its expiry after it.
    assert found.terms["scheduler"].usd == Fraction(3600, 1000)
    # The attempt after the preempted one had 450 uncached prompt tokens.
    assert found.terms["kv_recompute"].usd == Fraction(900, 10**6)
    # One of three lent requests missed its budget, none of two unlent ones, all in the same load bin.
    assert found.terms["provision"].usd == Fraction(1, 2)
    assert found.terms["provision"].basis == "measured"


def test_a_route_or_a_power_figure_the_book_lacks_is_refused(sample: Path) -> None:
    with pytest.raises(PriceBookError, match="route 'inter-region'"):
        priced(sample, book(('route = "inter-region"', 'route = "by ship"')))
    without_power = EXAMPLE.replace('[[power]]\nclass = "h100-sxm"', '[[power]]\nclass = "other"')
    with pytest.raises(PriceBookError, match=r"\[\[power\]\] for device class 'h100-sxm'"):
        priced(sample, pricebook.parse(without_power, "book.toml"))


def test_metered_power_is_compared_within_a_load_bin(sample: Path, write_ledger: Any) -> None:
    # The sample leases the whole hour, so the unlent side comes from a second serving device with the same load.
    second = [
        events.Device(action="joined", device_id="s1", t_ns=T0_NS, pool="serving", device_class="h100-sxm"),
        events.DeviceSlice(
            device_id="s1", t0_ns=T0_NS, t1_ns=T0_NS + 100 * S, serving_ns=40 * S, rollout_ns=0, train_ns=0, sync_ns=0,
            activation_ns=0, headroom_ns=0, idle_ns=60 * S,
        ),
        events.Power(device_id="s1", t0_ns=T0_NS, t1_ns=T0_NS + 100 * S, power_mw=300_000, source="nvml"),
        events.Power(device_id="s0", t0_ns=T0_NS, t1_ns=T0_NS + 60 * S, power_mw=520_000, source="nvml"),
        events.Power(device_id="s0", t0_ns=T0_NS + 60 * S, t1_ns=T0_NS + 80 * S, power_mw=400_000, source="nvml"),
    ]  # fmt: skip
    write_ledger(second, root=sample, writer="second")
    found = priced(sample, book())
    # Lent (60 * 520 + 20 * 400) / 80 = 490 W, unlent 300 W: 190 W over 3600 leased seconds.
    assert found.terms["energy"].usd == Fraction(190 * 3600) * Fraction(5, 4) / 3_600_000 / 10
    assert found.terms["energy"].basis == "measured"
    assert "+190.0 W while lent, metered" in found.terms["energy"].explained


def reading(load_bin: int, lent: bool, watts: int, seconds: int) -> dict[str, Any]:
    return {"load_bin": load_bin, "lent": lent, "energy_mw_ns": watts * 1000 * seconds, "duration_ns": seconds}


def test_a_mean_over_all_loads_would_mislead() -> None:
    # Lent when serving is idle, not lent when it is busy: the plain means differ by -300 W, the bins by +100 W.
    by_load = [
        reading(0, True, 200, 90),
        reading(0, False, 100, 10),
        reading(4, False, 600, 90),
        reading(4, True, 700, 10),
    ]
    assert extra_power_mw(by_load) == 100_000
    assert extra_power_mw(by_load[:1] + by_load[2:3]) is None
    assert extra_power_mw([]) is None


def test_fewer_missed_budgets_while_lent_give_a_negative_provision() -> None:
    prices = book(("violation_usd = 0", "violation_usd = 2"))

    def requests(load_bin: int, lent: bool, count: int, violations: int) -> dict[str, Any]:
        return {"load_bin": load_bin, "lent": lent, "requests": count, "violations": violations}

    bins = [requests(0, True, 100, 2), requests(0, False, 100, 1), requests(1, True, 50, 0), requests(1, False, 25, 1)]
    found = provision([*bins, requests(2, True, 10, 10)], prices)
    assert found.usd == Fraction(-2)
    assert "150 lent requests compared, 10 had nothing to compare with" in found.explained
    assert float(found.usd) == pytest.approx(formulas.realised_violations_usd([(100, 0.02, 0.01), (50, 0, 0.04)], 2))
