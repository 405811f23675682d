from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from rose import events
from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.spend.gather import gather
from tests.pricing.closing.conftest import DAY_NS, HOUR_NS, T0_NS
from tests.pricing.conftest import WriteLedger, us

#: From within the closed week to within an open day.
PART = Period(T0_NS + 5 * DAY_NS + HOUR_NS, T0_NS + 8 * DAY_NS - 3 * HOUR_NS)


def test_hours_are_those_of_the_bill_closed_and_open(half_closed: Path) -> None:
    book = str(half_closed / "book.toml")
    gathered = gather(half_closed / "ledger", PART, book)
    charged = bill(half_closed / "ledger", PART, pricebook.load(book)).frame
    keys = ("hour", "team", "closed")
    hours, billed = (
        frame.group_by(keys).agg(pl.col("cost_nano").sum()).sort(keys) for frame in (gathered.hours, charged)
    )
    assert hours.rows() == billed.rows()
    assert (gathered.stamp.provenance, gathered.stamp.verified, gathered.stamp.currency) == ("live", True, "USD")


def test_a_closed_period_asks_for_no_price_book(half_closed: Path) -> None:
    closed_days = Period(T0_NS, T0_NS + 7 * DAY_NS)
    assert gather(half_closed / "ledger", closed_days, "no-such-book.toml").open == ()
    with pytest.raises(PriceBookError, match=r"no-such-book\.toml"):
        gather(half_closed / "ledger", PART, "no-such-book.toml")


def test_a_run_that_died_before_blocks_no_later_period(sample: Path, write_ledger: WriteLedger) -> None:
    """It never ended and its device never left: it lasts until its last event, whatever its provenance."""
    begin_us = us(-60 * 86_400)
    dead = [
        events.Run(action="started", name="dead", at_us=begin_us),
        *(
            events.Device(
                action="joined",
                device_id="d",
                t_ns=1000 * begin_us,
                pool="serving",
                device_class="h100-sxm",
                at_us=at_us,
            )
            for at_us in (begin_us, begin_us + 1)
        ),
    ]
    root = write_ledger(dead, root=sample, writer="dead", run_id="dead", provenance="simulated")
    assert gather(root, Period(T0_NS, T0_NS + HOUR_NS), "example").stamp.provenance == "replay"
    with pytest.raises(PricingError, match="different provenance"):
        gather(root, Period(T0_NS - 61 * DAY_NS, T0_NS + HOUR_NS), "example")
