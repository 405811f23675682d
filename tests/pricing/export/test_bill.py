from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rose import events
from rose.pricing import charges
from rose.pricing.closing import store
from rose.pricing.export import bill, focus
from rose.pricing.export.bill import Bill
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run import report
from tests.pricing.conftest import T0_NS, WriteLedger
from tests.pricing.export.conftest import HOUR_NS, NAME, PERIOD, RUN, TAGS


def test_a_period_is_one_part_that_is_not_invoiced(period_bill: Bill, busy: Path, book: PriceBook) -> None:
    priced = charges.price(busy, book, from_ns=PERIOD.from_ns, to_ns=PERIOD.to_ns)
    assert period_bill.charges.frame.equals(priced.frame)
    assert (period_bill.close_id, period_bill.corrections, period_bill.marginal_nano) == (None, (), None)
    assert period_bill.total_nano == priced.total_nano
    assert (period_bill.stamp.provenance, period_bill.stamp.verified) == ("live", True)
    assert (period_bill.runs[RUN].name, period_bill.runs[RUN].tags_json) == (NAME, TAGS)


def test_a_whole_run_has_what_borrowing_added(sample_kept: Path) -> None:
    book = pricebook.load("example")
    made = bill.of_period(sample_kept, book, run_id="run")
    assert made.marginal_nano == report.build(sample_kept, "run", book).section.figure("borrow", "m", "in all").value
    begin = made.charges.from_ns
    hour = bill.of_period(sample_kept, book, from_ns=begin, to_ns=begin + HOUR_NS, run_id="run")
    assert hour.marginal_nano is None


def test_an_open_period_is_billed_over_whole_hours(sample_kept: Path) -> None:
    made = bill.of_period(sample_kept, pricebook.load("example"))
    assert made.charges.from_ns % HOUR_NS == made.charges.to_ns % HOUR_NS == 0
    assert made.charges.from_ns <= made.stamp.from_ns < made.stamp.to_ns <= made.charges.to_ns


def test_a_close_is_its_frozen_charges_and_each_correction(close_bill: Bill, closed: tuple[Path, str]) -> None:
    root, close_id = closed
    read = store.read(root, close_id)
    (correction,) = close_bill.corrections
    assert close_bill.charges.frame.equals(read.charges.frame)
    assert (close_bill.close_id, correction.invoice_id) == (close_id, f"{close_id}/1")
    assert (correction.correction, correction.reason) == (True, "a new contract")
    assert close_bill.charges.total_nano + correction.total_nano == close_bill.total_nano
    assert close_bill.total_nano == int(read.frame["cost_nano"].sum())
    # Billed in the month in which it was posted, which is over only later.
    assert correction.from_ns <= read.posted[1].posted_ns < correction.to_ns
    assert correction.book.version == "2"


def test_an_unverified_close_is_refused_unless_it_is_allowed(closed: tuple[Path, str]) -> None:
    root, close_id = closed
    read = store.read(root, close_id)
    doubtful = dataclasses.replace(read, posted=(dataclasses.replace(read.posted[0], verified=False), *read.posted[1:]))
    with pytest.raises(PricingError, match="did not verify"):
        bill.of_closed(root, doubtful)
    assert not bill.of_closed(root, doubtful, allow_unverified=True).stamp.verified


def test_a_close_that_there_is_none_of_is_named(busy: Path) -> None:
    with pytest.raises(PricingError, match="there is no close 'nope'"):
        bill.of_close(busy, "nope")


def test_weights_sent_before_the_first_device_joined_are_in_the_period(
    sample: Path, write_ledger: WriteLedger, tmp_path: Path
) -> None:
    early = events.Sync(
        device_id="s0",
        ok=True,
        base_version=None,
        encoding="dense",
        wire_bytes=10**9,
        dense_bytes=10**9,
        total_ns=1,
        source="relay",
        route="loopback",
        at_us=T0_NS // 1000 - 2 * 3_600_000_000,
    )
    made = bill.of_period(write_ledger([early], root=sample, writer="early"), pricebook.load("example"))
    assert made.charges.from_ns == T0_NS - 2 * HOUR_NS
    assert focus.write(made, tmp_path / "f.csv").totals["billed"] == made.total_nano
