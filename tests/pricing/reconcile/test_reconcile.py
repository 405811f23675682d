import gzip
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing import reconcile as reconciliation
from rose.pricing.closing.bill import Bill, bill
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.reconcile import reconcile, tables
from tests.pricing.conftest import printed
from tests.pricing.reconcile import vendor_file
from tests.pricing.reconcile.conftest import BOOK, LEDGER_NANO, NANO, PERIOD, Row, charge, mapped, whole, write_csv

Compare = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def priced_once() -> Iterator[None]:
    """Price the ledger once by each book: tests differ in the invoice that they compare it with."""
    bills = dict[tuple[Path, str], Bill]()

    def bill_once(ledger: Ledger, period: Period, book: PriceBook, **options: Any) -> Bill:
        key = ledger.folder, f"{period} {book.sha256} {options}"
        if key not in bills:
            bills[key] = bill(ledger, period, book, **options)
        return bills[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconciliation, "bill", bill_once)
        yield


@pytest.fixture
def compare(fleet_of_four: Path, tmp_path: Path) -> Compare:
    def compared(rows: list[Row], book: PriceBook = BOOK, **options: Any) -> dict[str, Any]:
        made = reconcile(Ledger(fleet_of_four), write_csv(tmp_path / "v.csv", rows), PERIOD, book, **options)
        for name in ("ledger_nano", "effective_nano", "difference_nano"):
            assert sum(line[name] for line in made["lines"]) == made["total"][name]
        assert made["disagreement_nano"] == sum(abs(line["difference_nano"]) for line in made["lines"])
        return made

    return compared


def lines(made: dict[str, Any]) -> dict[tuple[str, str, str], int]:
    return {(one["kind"], one["name"], one["item"]): one["difference_nano"] for one in made["lines"]}


def test_an_invoice_that_says_the_same_agrees_to_the_nano_dollar(compare: Compare) -> None:
    made = compare(whole(), tolerance=Fraction(0))
    assert (made["within"], made["total"]["effective_nano"], made["total"]["ledger_nano"]) == (
        True,
        LEDGER_NANO,
        LEDGER_NANO,
    )
    assert made["total"]["invoice_ns"] == made["total"]["ledger_ns"]
    assert set(lines(made)) == {("device", f"GPU-{number}", "device time") for number in range(4)}
    assert made["days"] == made["other_charges"] == made["repeated_rows"] == []
    assert "within the tolerance of 0 " in printed(tables(made))


def test_differences_that_cancel_out_are_named_by_device_and_day(compare: Compare) -> None:
    rows = [row for row in whole() if (row["ResourceId"], row["ChargePeriodStart"][:10]) != ("GPU-0", "2026-06-02")]
    made = compare([*rows, charge("i-77", 2)])
    assert (made["within"], made["total"]["difference_nano"], made["disagreement_nano"]) == (
        False,
        0,
        2 * 86_400_000_000,
    )
    reasons = {line["name"]: line["reason"] for line in made["lines"] if line["reason"]}
    assert reasons["i-77"] == "missing in the ledger"
    assert "not on the invoice on 1 days" in reasons["GPU-0"]
    assert [(day["day"], day["name"]) for day in made["days"]] == [("2026-06-02", "GPU-0"), ("2026-06-02", "i-77")]
    assert "beyond the tolerance" in printed(tables(made))


def test_hours_a_price_or_a_missing_line_are_the_reason(compare: Compare) -> None:
    others = [row for row in whole() if row != charge("GPU-0", 1)]
    for rows, name, reason in (
        ([*others, charge("GPU-0", 1, "90.00", "25")], "GPU-0", "hours: 73 h 00 min 00 s billed, 72 h 00 min 00 s in"),
        ([*others, charge("GPU-0", 1, "120.00", "24")], "GPU-0", "price: $4.07 an hour billed, $3.60 in the ledger"),
        (whole(without=["GPU-3"]), "GPU-3", "missing on the invoice"),
    ):
        (differing,) = [line for line in compare(rows)["lines"] if line["reason"]]
        assert (differing["name"], differing["reason"][: len(reason)]) == (name, reason)


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ('resource = "i-0*"\nhardware = "GPU-0"', ("device", "GPU-0")),
        ('resource = "i-0*"\ndevice = "s0"', ("device", "GPU-0")),
        ('sku = "sku-*"\nhardware = "GPU-[01]"', ("devices", "GPU-[01]")),
        ('resource = "i-0?"\nclass = "h100-sxm"', ("class", "h100-sxm")),
    ],
)
def test_the_book_says_what_a_resource_is(compare: Compare, entry: str, key: tuple[str, str]) -> None:
    made = compare(whole(GPU_0="i-07"), mapped(entry))
    assert (*key, "device time") in lines(made)
    assert made["within"]


@pytest.mark.parametrize("cells", [{"ResourceType": "H100-SXM"}, {"SkuId": "h100-sxm"}])
def test_what_has_no_device_is_compared_by_its_class(compare: Compare, cells: Row) -> None:
    rows = whole(without=["GPU-0", "GPU-1"]) + [charge("", day, "172.80", "48", **cells) for day in (1, 2, 3)]
    made = compare(rows)
    assert made["within"]
    assert lines(made)["class", "h100-sxm", "device time"] == 0


def test_credits_taxes_and_what_pays_for_usage_stay_apart(compare: Compare) -> None:
    others = [
        charge("", 1, "-5.00", None, ChargeCategory="Credit"),
        charge("", 1, "9.00", None, ChargeCategory="Tax"),
        charge("GPU-0", 1, "100.00", None, ChargeCategory="Purchase", EffectiveCost="0"),
    ]
    made = compare(whole() + others)
    assert made["within"]
    assert [(other["category"], Decimal(other["billed"])) for other in made["other_charges"]] == [
        ("Credit", -5),
        ("Purchase", 100),
        ("Tax", 9),
    ]


def test_rows_that_are_there_twice_are_counted_and_named(compare: Compare) -> None:
    made = compare([*whole(), charge("GPU-0", 1)])
    assert (made["repeated_rows"], made["total"]["again_nano"]) == ([13], 86_400_000_000)
    assert "repeated rows make $86.40" in str(made["lines"])


def test_a_row_of_many_days_is_cut_by_time_and_adds_up(compare: Compare) -> None:
    month = charge("GPU-0", 1, "2592.000000001", "720", ChargePeriodEnd="2026-07-01T00:00:00Z")
    made = compare([*whole(without=["GPU-0"]), month])
    assert abs(lines(made)["device", "GPU-0", "device time"]) <= 3
    assert made["within"]


@pytest.mark.parametrize(
    ("cells", "item"),
    [
        ({"ConsumedUnit": "kWh"}, "energy"),
        ({"ConsumedUnit": "GB", "SkuId": "egress"}, "transfer"),
        ({"ConsumedUnit": "GB-Hours"}, "other"),
        ({"ConsumedUnit": "GPU-Hours"}, "device time"),
    ],
)
def test_the_unit_says_what_is_charged(compare: Compare, cells: Row, item: str) -> None:
    made = compare([*whole(), charge("GPU-0", 1, "1.00", "1", **cells)])
    assert lines(made)["device", "GPU-0", item] == (800_000_000 if item == "transfer" else NANO)


def test_the_ledger_side_of_transfer_is_compared_where_the_invoice_has_it(compare: Compare) -> None:
    sent = charge("GPU-0", 1, "0.20", "10", ConsumedUnit="GB", SkuId="egress")
    assert compare([*whole(), sent])["total"]["difference_nano"] == 0


@pytest.mark.parametrize("name", ["vendor.csv", "v*[1]?.csv", "it's.csv", "-v.csv"])
def test_a_csv_is_read_whatever_it_is_called(fleet_of_four: Path, tmp_path: Path, name: str) -> None:
    assert reconcile(Ledger(fleet_of_four), write_csv(tmp_path / name, whole()), PERIOD, BOOK)["within"]


def test_gzip_and_parquet_are_read(fleet_of_four: Path, tmp_path: Path) -> None:
    text = write_csv(tmp_path / "v.csv", whole()).read_bytes()
    (tmp_path / "v.gz").write_bytes(
        gzip.compress(b"\xef\xbb\xbf" + text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"))
    )
    frame = pl.read_csv(tmp_path / "v.csv")
    frame.with_columns(pl.col("BilledCost", "EffectiveCost").cast(pl.Decimal(30, 10))).write_parquet(tmp_path / "v.pq")
    for name in ("v.gz", "v.pq"):
        assert reconcile(Ledger(fleet_of_four), tmp_path / name, PERIOD, BOOK, tolerance=Fraction(0))["within"]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("BilledCost", "ten"),
        ("EffectiveCost", "1e13"),
        ("BillingCurrency", "EUR"),
        ("ChargeCategory", "usage"),
        ("ChargePeriodStart", "yesterday"),
        ("ChargePeriodEnd", "2026-01-01T00:00:00Z"),
    ],
)
def test_a_cell_that_cannot_be_used_is_named(compare: Compare, column: str, cell: str) -> None:
    with pytest.raises(PricingError, match=re.escape(f"row 2: {column} must not be {cell}")):
        compare([charge(), charge(day=2, **{column: cell})])


def test_a_file_that_is_no_invoice_is_refused(compare: Compare, fleet_of_four: Path, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_text("BilledCost,ChargeCategory\n1,Usage\n")
    with pytest.raises(PricingError, match="lacks the FOCUS columns BillingCurrency"):
        reconcile(Ledger(fleet_of_four), tmp_path / "v.csv", PERIOD, BOOK)
    (tmp_path / "v.csv").write_bytes(b"PAR1 and nothing of Parquet")
    with pytest.raises(PricingError, match="is not a FOCUS file in CSV or Parquet"):
        reconcile(Ledger(fleet_of_four), tmp_path / "v.csv", PERIOD, BOOK)
    with pytest.raises(PricingError, match="has no charge of usage in"):
        compare([charge(day=9)])


def test_the_sample_invoice_is_what_its_program_makes(tmp_path: Path) -> None:
    vendor_file.make(tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == vendor_file.FILE.read_bytes()
