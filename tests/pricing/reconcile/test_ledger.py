from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.money import PricingError
from rose.pricing.reconcile import ledger
from tests.pricing.reconcile.conftest import BOOK, DAYS, DEVICES, LEDGER_NANO, PERIOD, T0_NS


def test_sums_of_closed_and_open_days_are_the_bill(fleet_of_four: Path) -> None:
    frame, stamp = ledger.charges(fleet_of_four, PERIOD, BOOK)
    assert stamp.currency == "USD"
    time = frame.filter(frame["item"] == "device time")
    assert time.height == DAYS * len(DEVICES)
    assert (time["cost_nano"].sum(), time["ns"].sum()) == (LEDGER_NANO, DAYS * len(DEVICES) * NS_PER_DAY)
    assert frame.filter(frame["item"] == "transfer").select("cost_nano", "ns").rows() == [(200_000_000, 0)]


@pytest.mark.long
def test_days_beside_the_period_are_left_out(fleet_of_four: Path) -> None:
    second = Period(T0_NS + NS_PER_DAY, T0_NS + 2 * NS_PER_DAY)
    frame, _ = ledger.charges(fleet_of_four, second, BOOK, classes=["l40s"])
    assert frame.height == 2
    assert frame["cost_nano"].sum() == 2 * 24_000_000_000
    with pytest.raises(PricingError, match=r"of class 'h100'; did you mean 'h100-sxm'\?"):
        ledger.charges(fleet_of_four, second, BOOK, classes=["h100"])
