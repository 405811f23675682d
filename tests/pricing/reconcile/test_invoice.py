from __future__ import annotations

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.pricing.money import PricingError
from rose.pricing.reconcile import invoice
from tests.pricing.reconcile.conftest import charge, write_csv


def read(path: Path) -> list[tuple[Any, ...]]:
    with invoice.opened(path) as (connection, _):
        columns = "row, resource, quantity, billed, begins::VARCHAR, tagged"
        return connection.execute(f"SELECT {columns} FROM invoice_row ORDER BY row").fetchall()


ROWS = [charge("GPU-0"), charge("i-=cmd()|'x'!A1", Tags='{"rose/device": "s0", "team": "a"}')]
READ = [
    (1, "GPU-0", Decimal(24), Decimal("86.4"), "2026-06-01 00:00:00", ""),
    (2, "i-=cmd()|'x'!A1", Decimal(24), Decimal("86.4"), "2026-06-01 00:00:00", "s0"),
]


@pytest.mark.parametrize("name", ["vendor.csv", "v*[1]?.csv", "it's.csv", "-v.csv"])
def test_a_csv_is_read_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    (tmp_path / "v1x1.csv").write_text("another file that a pattern would fit")
    assert read(write_csv(tmp_path / name, ROWS)) == READ


def test_gzip_and_a_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    text = write_csv(tmp_path / "v.csv", ROWS).read_bytes()
    (tmp_path / "zipped").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text))
    assert read(tmp_path / "zipped") == READ
    (tmp_path / "unix.csv").write_bytes(text.replace(b"\r\n", b"\n"))
    assert read(tmp_path / "unix.csv") == READ


def test_parquet_is_read_with_any_types(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS).with_columns(
        pl.col("BilledCost").cast(pl.Float64),
        pl.col("EffectiveCost").cast(pl.Decimal(18, 6)),
        pl.col("ConsumedQuantity").cast(pl.Int32),
        pl.col("ChargePeriodStart", "ChargePeriodEnd").str.to_datetime(time_zone="UTC"),
        pl.lit(None, pl.String).alias("ChargeClass"),
        pl.Series("Tags", [{"rose/device": None}, {"rose/device": "s0"}]),
    )
    # The kind of a file is told by what is in it.
    frame.write_parquet(tmp_path / "v.csv")
    assert read(tmp_path / "v.csv") == READ


def test_the_file_says_of_what_and_when_it_is(tmp_path: Path) -> None:
    rows = [charge(day=day, InvoiceId=f"INV-{day}") for day in range(1, 9)]
    with invoice.opened(write_csv(tmp_path / "v.csv", rows)) as (_, facts):
        assert (facts.rows, facts.currency) == (8, "USD")
        assert (facts.begins, facts.ends) == ("2026-06-01T00:00:00Z", "2026-06-09T00:00:00Z")
        assert facts.invoice_ids == ("INV-1", "INV-2", "INV-3", "INV-4", "INV-5")


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"BilledCost": "NaN"}, "row 2: BilledCost must be a number below 1e12, and is 'NaN'"),
        ({"BilledCost": ""}, "row 2: BilledCost must be a number below 1e12, and is 'no value'"),
        ({"BilledCost": "$5"}, "is '$5'"),
        ({"EffectiveCost": "=1+1"}, "row 2: EffectiveCost must be a number below 1e12, and is '=1+1'"),
        ({"EffectiveCost": "1e13"}, "is '1e13'"),
        ({"EffectiveCost": "inf"}, "is 'inf'"),
        ({"ConsumedQuantity": "1,000"}, "row 2: ConsumedQuantity must be a number"),
        ({"ConsumedQuantity": "-3"}, "must not be negative unless ChargeClass is Correction, and is '-3'"),
        ({"PricingQuantity": "many"}, "PricingQuantity must be a number"),
        ({"BillingCurrency": "usd"}, "BillingCurrency must be a code such as USD, and is 'usd'"),
        ({"ChargeCategory": "Refund"}, "must be Usage, Purchase, Tax, Credit or Adjustment, and is 'Refund'"),
        ({"ChargePeriodStart": "01.06.2026"}, "ChargePeriodStart must be written YYYY-MM-DDTHH:mm:ssZ"),
        ({"ChargePeriodEnd": "2026-06-31T00:00:00Z"}, "ChargePeriodEnd must be written YYYY-MM-DDTHH:mm:ssZ"),
        ({"ChargePeriodEnd": "2026-06-01T00:00:00Z"}, "ChargePeriodEnd must be after ChargePeriodStart"),
        ({"ResourceId": "x" * 1_900_000}, "ResourceId must have at most 2000 characters, and is 'xxx"),
        ({"ResourceId": "x" * 10_000_000}, "line 3 of the file: Maximum line size of 2000000 bytes exceeded"),
        ({"BillingCurrency": "EUR"}, "BillingCurrency is EUR and USD; reconcile the rows of each by themselves"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_cell_that_cannot_be_used_is_named(tmp_path: Path, cells: dict[str, str], says: str) -> None:
    path = write_csv(tmp_path / "v.csv", [charge(), charge(**{"ResourceId": "GPU-1"} | cells)])
    with pytest.raises(PricingError) as error:
        read(path)
    assert says in str(error.value)
    assert len(str(error.value)) < 1000


def test_the_first_of_many_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(PricingError, match=r"row 1: .*\n(.*\n){4}  and 25 rows more"):
        read(write_csv(tmp_path / "v.csv", [charge(BilledCost="x")] * 30))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "lacks the FOCUS columns BilledCost"),
        (b"BilledCost;EffectiveCost\n1;2\n", "it has BilledCost;EffectiveCost. Give the cost and usage file"),
        (b"\x00\xff\xfe" * 99, "neither CSV in UTF-8 nor Parquet"),
        (b"\x1f\x8bjunk", "neither CSV in UTF-8 nor Parquet"),
        (b"PAR1" + b"x" * 99, "cannot be read: Invalid Input Error"),
        ("{header}\n", "has no rows below its header"),
        ("{header},billedcost\n{row},1\n", "has columns twice: BilledCost, billedcost"),
        ("{header}\n1,2,3\n", "line 2 of the file: Expected Number of Columns: 16 Found: 3"),
        ("{header}\n{row}\n{row},1\n", "line 3 of the file: Expected Number of Columns: 16 Found: 17"),
        ('{header}\n{row}\n"open', "line 3 of the file: Value with unterminated quote"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_file_that_is_no_invoice_is_refused(tmp_path: Path, content: bytes | str, says: str) -> None:
    header, row = write_csv(tmp_path / "good.csv", [charge()]).read_text().split("\n")[:2]
    path = tmp_path / "v.csv"
    path.write_bytes(
        content if isinstance(content, bytes) else content.format(header=header.strip(), row=row.strip()).encode()
    )
    with pytest.raises(PricingError) as error:
        read(path)
    assert says in str(error.value)
    assert "rose-reconcile-" not in str(error.value)


def test_a_file_that_lacks_columns_is_told_which(tmp_path: Path) -> None:
    row = charge()
    for name in ("EffectiveCost", "ResourceId", "SkuId"):
        del row[name]
    with pytest.raises(
        PricingError, match=r"lacks the FOCUS columns EffectiveCost, ResourceId \(or SkuId\); it has Bill"
    ):
        read(write_csv(tmp_path / "v.csv", [row]))
    with pytest.raises(PricingError, match="there is no such file"):
        read(tmp_path / "none*.csv")
