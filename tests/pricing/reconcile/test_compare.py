from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Protocol

import polars as pl
import pytest

from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.figures import Stamp
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError
from rose.pricing.reconcile import compare as comparing
from rose.pricing.reconcile import invoice, ledger, tables
from rose.pricing.reconcile.compare import Line, Reconciliation
from rose.pricing.reconcile.reasons import reason
from tests.pricing.reconcile.conftest import (
    BOOK,
    BOOK_TEXT,
    DAYS,
    LEDGER_NANO,
    NANO,
    PERIOD,
    T0_NS,
    Row,
    charge,
    mapped,
    whole,
    write_csv,
)

Charged = tuple[pl.DataFrame, Stamp]


class Compare(Protocol):
    def __call__(
        self, rows: Sequence[Row], book: PriceBook = BOOK, tolerance: Fraction = Fraction(5, 1000)
    ) -> Reconciliation: ...


@pytest.fixture(scope="module")
def charged(fleet_of_four: Path) -> Charged:
    return ledger.charges(fleet_of_four, PERIOD, BOOK)


@pytest.fixture
def compare(charged: Charged, tmp_path: Path) -> Compare:
    def made(rows: Sequence[Row], book: PriceBook = BOOK, tolerance: Fraction = Fraction(5, 1000)) -> Reconciliation:
        with invoice.opened(write_csv(tmp_path / "vendor.csv", rows)) as (connection, facts):
            return comparing.compare(connection, facts, *charged, book, tolerance)

    return made


def line(made: Reconciliation, name: str, item: str = "device time") -> Line:
    (only,) = [line for line in made.lines if (line.name, line.item) == (name, item)]
    return only


def test_an_invoice_that_says_the_same_agrees_to_the_nano_dollar(compare: Compare) -> None:
    made = compare(whole(GPU_0="s0", GPU_1="s1"))
    assert made.total.ledger_nano == made.total.effective_nano == made.total.billed_nano == LEDGER_NANO
    assert made.total.ledger_ns == made.total.invoice_ns == len(made.lines) * DAYS * NS_PER_DAY
    assert made.within
    assert (made.disagreement_nano, made.uncovered, made.device_days) == (0, (), ())
    assert {(line.kind, line.name) for line in made.lines} == {("device", f"GPU-{n}") for n in range(4)}
    assert line(made, "GPU-0").device_ids == ("s0",)
    assert made.invoice.invoice_ids == ("INV-7",)
    # What the fleet pays for its weights, this vendor does not bill.
    assert made.not_invoiced == (("transfer", 200_000_000),)


def test_each_device_and_day_that_differs_is_named(compare: Compare) -> None:
    rows = whole(without=("GPU-0",)) + [charge("GPU-0", day, "86.40" if day < 3 else "90.00") for day in (1, 2, 3)]
    made = compare(rows)
    assert line(made, "GPU-0").difference_nano == 3_600_000_000
    assert [day.difference_nano for day in made.days] == [0, 0, 3_600_000_000]
    (only,) = made.device_days
    assert (only.day, only.name, only.difference_nano) == (date(2026, 6, 3), "GPU-0", 3_600_000_000)


def test_differences_that_cancel_out_are_beyond_the_tolerance(compare: Compare) -> None:
    rows = whole(without=("GPU-0",)) + [charge("i-strange", day) for day in (1, 2, 3)]
    made = compare(rows)
    assert made.total.difference_nano == 0
    assert made.disagreement_nano == 2 * 3 * 86_400_000_000
    assert not made.within
    assert reason(line(made, "GPU-0"), made.tolerance) == "missing on the invoice"
    assert (line(made, "GPU-0").days_ledger, line(made, "GPU-0").days_both) == (3, 0)
    strange = line(made, "i-strange")
    assert (strange.kind, strange.days_invoice) == ("unknown", 3)


def test_the_tolerance_is_a_share_of_the_ledger(compare: Compare) -> None:
    rows = [*whole(), charge("GPU-0", 2, f"{LEDGER_NANO / NANO / 100:.2f}", None)]
    share = Fraction(round(LEDGER_NANO / NANO), 100 * round(LEDGER_NANO / NANO))
    made = compare(rows, tolerance=share * Fraction(101, 100))
    assert made.within
    assert not compare(rows, tolerance=share * Fraction(99, 100)).within


def test_the_book_says_what_a_resource_is(compare: Compare) -> None:
    rows = whole(GPU_0="i-0a", GPU_2="disk-1", GPU_3="disk-2")
    book = mapped(
        'resource = "i-0*"\ndevice = "s0"',
        'resource = "disk-1"\nhardware = "GPU-2"',
        'resource = "disk-*"\nhardware = "GPU-3"',
    )
    made = compare(rows, book)
    assert made.disagreement_nano == 0
    assert {line.kind for line in made.lines} == {"device"}


def test_a_resource_of_several_devices_is_compared_with_them_all(compare: Compare) -> None:
    rows = whole(without=("GPU-0", "GPU-1")) + [charge("i-pair", day, "172.80", "24") for day in (1, 2, 3)]
    made = compare(rows, mapped('resource = "i-pair"\nhardware = "GPU-[01]"\ndevices = 2'))
    pair = line(made, "GPU-[01]")
    assert (pair.kind, pair.device_ids) == ("devices", ("s0", "s1"))
    assert pair.difference_nano == 0
    assert pair.invoice_ns == pair.ledger_ns == 2 * 3 * NS_PER_DAY


def test_an_entry_of_the_book_holds_on_its_days_only(compare: Compare) -> None:
    rows = whole(without=("GPU-0", "GPU-1")) + [charge("slot-1", day) for day in (1, 2, 3)]
    entries = (
        'resource = "slot-1"\nhardware = "GPU-0"\nvalid_to = 2026-06-02',
        'resource = "slot-1"\nhardware = "GPU-1"\nvalid_from = 2026-06-02',
    )
    made = compare(rows, mapped(*entries))
    first, second = line(made, "GPU-0"), line(made, "GPU-1")
    assert (first.days_both, first.days_ledger) == (1, 2)
    assert (second.days_both, second.days_ledger) == (2, 1)


@pytest.mark.parametrize(
    "cells",
    [{"SkuId": "device/l40s"}, {"ResourceType": "L40S"}, {"SkuId": "sku-l40"}, {"ResourceId": "", "SkuId": "l40s"}],
)
def test_what_has_no_device_is_compared_by_its_class(compare: Compare, cells: Row) -> None:
    # Both runs call a device r0: that name tells nothing.
    rows = whole(without=("GPU-2", "GPU-3")) + [charge("r0", day, "48.00", "48", **cells) for day in (1, 2, 3)]
    made = compare(rows, mapped('sku = "sku-l4?"\nclass = "l40s"'))
    group = line(made, "l40s")
    assert (group.kind, group.difference_nano, group.days_both) == ("class", 0, 3)
    assert made.line_count == 3


def test_the_tag_of_a_resource_names_its_device(compare: Compare) -> None:
    rows = whole(without=("GPU-0",)) + [charge("x", day, Tags='{"rose/device": "s0"}') for day in (1, 2, 3)]
    assert compare(rows).disagreement_nano == 0
    wrong = [*whole(without=("GPU-0",)), charge("x", 1, Tags='{"rose/device": "s0"')]
    assert line(compare(wrong), "x").kind == "unknown"


def test_credits_taxes_and_what_pays_for_usage_stay_apart(compare: Compare) -> None:
    rows = [
        *whole(),
        charge("", 1, "-50.00", None, ChargeCategory="Credit"),
        charge("", 2, "19.00", None, ChargeCategory="Tax"),
        charge("plan", 1, "500.00", None, ChargeCategory="Purchase", EffectiveCost="0"),
        charge("", 3, "1.00", None, ChargeCategory="Adjustment"),
    ]
    made = compare(rows)
    assert made.disagreement_nano == 0
    assert {part.category: part.billed_nano for part in made.apart} == {
        "Adjustment": NANO,
        "Credit": -50 * NANO,
        "Purchase": 500 * NANO,
        "Tax": 19 * NANO,
    }
    # A purchase that no usage pays for is what the device cost.
    bought = whole(without=("GPU-0",)) + [charge("GPU-0", day, ChargeCategory="Purchase") for day in (1, 2, 3)]
    assert compare(bought).disagreement_nano == 0


def test_corrections_of_the_vendor_s_own_are_in_the_sum_and_named(compare: Compare) -> None:
    made = compare([*whole(), charge("GPU-0", 2, "-6.40", None, ChargeClass="Correction")])
    assert made.total.corrections_nano == line(made, "GPU-0").difference_nano == -6_400_000_000
    assert made.negative == ()
    assert compare([*whole(), charge("GPU-0", 2, "-6.40", None)]).negative == ((13, "-6.400000000000"),)


def test_rows_that_are_there_twice_are_counted_and_named(compare: Compare) -> None:
    rows = whole()
    made = compare([*rows, rows[1], rows[1]])
    assert (made.repeated, made.repeated_count) == (((13, 2), (14, 2)), 2)
    assert line(made, "GPU-0").again_nano == line(made, "GPU-0").difference_nano == 2 * 86_400_000_000
    assert "rows that are there twice" in reason(line(made, "GPU-0"), made.tolerance)


def test_days_that_the_invoice_leaves_out_are_named(compare: Compare) -> None:
    rows = [row for row in whole() if row["ChargePeriodStart"] < "2026-06-02"]
    made = compare([*rows, charge("GPU-0", 9)])
    assert made.uncovered == (date(2026, 6, 2), date(2026, 6, 3))
    assert (made.outside.rows, made.outside.effective_nano) == (1, 86_400_000_000)
    with pytest.raises(PricingError, match=r"charges from 2026-06-09T00:00:00Z to 2026-06-10T00:00:00Z, and none"):
        compare([charge("GPU-0", 9)])


def test_a_row_of_many_days_is_cut_by_time_and_adds_up(compare: Compare) -> None:
    # From the last day of May to the middle of the third of June, and an odd amount.
    month = charge("GPU-0", usd="100.000000001", hours="84", ChargePeriodStart="2026-05-31T00:00:00Z")
    made = compare([month | {"ChargePeriodEnd": "2026-06-03T12:00:00+00:00"}, *whole(without=("GPU-0",))])
    inside = line(made, "GPU-0")
    # Each sum of a day is whole nano-dollars.
    assert abs(inside.effective_nano + made.outside.effective_nano - 100_000_000_001) <= 2
    assert inside.invoice_ns == 60 * 3600 * NANO
    assert made.outside.rows == 1


@pytest.mark.parametrize(
    ("quantity", "unit"), [("86400", "Seconds"), ("1440", "Minutes"), ("1", "Days"), ("24", "GPU-Hours"), ("24", "hrs")]
)
def test_hours_are_told_from_the_unit(compare: Compare, quantity: str, unit: str) -> None:
    rows = whole(without=("GPU-0",)) + [
        charge("GPU-0", day, ConsumedUnit=unit, ConsumedQuantity=quantity) for day in (1, 2, 3)
    ]
    assert line(compare(rows), "GPU-0").invoice_ns == 3 * NS_PER_DAY


@pytest.mark.parametrize(
    ("unit", "named", "item"),
    [
        ("GB-Hours", {}, "other"),
        ("100 Hours", {}, "other"),
        ("kWh", {}, "energy"),
        ("GiB", {"SkuId": "DataTransfer-Out-Bytes"}, "transfer"),
        ("GB", {"ResourceType": "egress"}, "transfer"),
        ("GB", {"ServiceCategory": "Networking"}, "transfer"),
        ("GB", {"SkuMeter": "Bandwidth"}, "transfer"),
        ("GB", {}, "other"),
        ("GB", {"SkuId": "disk-standard", "ServiceCategory": "Storage"}, "other"),
        ("GB-Hours", {"ServiceCategory": "Networking"}, "other"),
    ],
)
def test_what_is_no_device_time_is_an_item_of_its_own(
    compare: Compare, unit: str, named: dict[str, str], item: str
) -> None:
    services = {"ServiceCategory": "Compute", "SkuMeter": ""}
    rows = [row | services for row in whole()]
    made = compare([*rows, charge("GPU-0", 2, "1.00", "5", ConsumedUnit=unit, **(services | named))])
    assert line(made, "GPU-0", item).effective_nano == NANO
    assert line(made, "GPU-0").difference_nano == 0
    assert (made.not_invoiced == ()) == (item == "transfer")


@pytest.mark.parametrize(
    ("meaning", "named", "kind", "name"),
    [
        ('sku = "peering-*"\nitem = "transfer"\nhardware = "GPU-0"', {}, "device", "GPU-0"),
        ('sku = "peering-*"\nitem = "transfer"\nclass = "h100-sxm"', {}, "class", "h100-sxm"),
        # What a device is, its own name says; what of it is charged, the book.
        ('sku = "peering-*"\nitem = "transfer"\nclass = "l40s"', {"ResourceId": "GPU-0"}, "device", "GPU-0"),
    ],
)
def test_the_book_says_that_a_row_is_transfer(
    compare: Compare, meaning: str, named: dict[str, str], kind: str, name: str
) -> None:
    """Ten gigabytes of weights were 20 cents; the vendor's name of the line says nothing of a network."""
    row = charge("link-7", 1, "0.20", "10", ConsumedUnit="GB", SkuId="peering-4", **named)
    made = compare([*whole(), row], mapped(meaning))
    transfer = line(made, name, "transfer")
    assert (transfer.kind, transfer.ledger_nano, transfer.effective_nano) == (kind, 200_000_000, 200_000_000)
    assert made.not_invoiced == ()
    assert made.within
    with pytest.raises(PriceBookError, match="item"):
        mapped(meaning.replace("transfer", "bytes"))


def test_a_vendor_of_one_class_is_compared_with_that_class(fleet_of_four: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "vendor.csv", whole(without=("GPU-2", "GPU-3")))
    made = comparing.reconcile(fleet_of_four, path, PERIOD, BOOK, classes=["h100-sxm"])
    assert made.within
    assert made.total.ledger_nano == 2 * 3 * 86_400_000_000


def test_what_cannot_be_compared_is_refused(compare: Compare, fleet_of_four: Path, tmp_path: Path) -> None:
    with pytest.raises(PricingError, match=r"the invoice is in EUR and the ledger in USD: price book .* has no rate"):
        compare([charge(BillingCurrency="EUR")])
    with pytest.raises(PricingError, match="whole UTC days"):
        comparing.reconcile(fleet_of_four, tmp_path / "none.csv", Period(T0_NS, T0_NS + NS_PER_DAY // 2))


def test_it_is_the_same_however_much_is_summed_up_at_once(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of the whole period beside those of days, and a meaning that changes with the second day."""
    month = {"ChargePeriodStart": "2026-05-31T00:00:00Z", "ChargePeriodEnd": "2026-06-04T00:00:00Z"}
    rows = [*whole(GPU_0="i-7"), charge("disk", 1, "7.77", "96", **month), charge("i-7", 2, "0.33", "96", **month)]
    book = mapped('resource = "i-7"\nhardware = "GPU-1"\nvalid_to = 2026-06-02', 'resource = "i-*"\nhardware = "GPU-0"')
    made = compare(rows, book)
    monkeypatch.setattr(comparing, "_SUMS_AT_ONCE", 1)
    assert compare(rows, book) == made
    assert line(made, "GPU-1").days_both == line(made, "GPU-0").days_both + 1 == 3


def test_only_what_differs_most_is_handed_out(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_LINES_MAX", 1)
    made = compare([*whole(), charge("GPU-1", 2, "1.00", None), charge("GPU-2", 2, "5.00", None)])
    assert ([line.name for line in made.lines], made.line_count) == (["GPU-2"], 4)
    assert [day.name for day in made.device_days] == ["GPU-2"]
    assert made.disagreement_nano == 6 * NANO
    assert tables.to_json(made)["devices_left_off"] == 3


def test_another_currency_is_converted_at_the_book_s_rate(compare: Compare) -> None:
    euro = "\n[[exchange_rate]]\ncurrency = 'EUR'\nusd_per_unit = 1.08\nvalid_from = 2026-01-01\n"
    book = pricebook.parse(BOOK_TEXT + euro + "source = 'ECB'\nsource_date = 2026-06-01\n", "euro.toml")
    # $86.40 is EUR 80.00.
    rows = [charge("GPU-0", day, "80.00", BillingCurrency="EUR") for day in (1, 2, 3)]
    made = compare(rows, book)
    assert (line(made, "GPU-0").difference_nano, made.stamp.currency) == (0, "USD")
    assert made.rate is not None
    assert (made.rate.text.split(",")[0], str(made.rate.day)) == (
        "Converted from USD at 1.08 USD for 1 EUR",
        "2026-06-03",
    )
    shown = " ".join(str(part) for part in tables.terminal(made))
    assert "1 EUR is 1.08 USD, the rate for 2026-06-03 in price book by hand 1: ECB, 2026-06-01" in shown
    assert tables.to_json(made)["invoice"]["rate"]["usd_per_unit"] == "1.08"
