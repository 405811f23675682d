"""The sample invoice of a vendor: ROSE's own FOCUS export of the sample ledger, with edits that a vendor might make.

    .venv/bin/python tests/pricing/reconcile/vendor_file.py

makes it again. A row for each device and hour of the export, on demand and without the columns that are ROSE's own; and
then: one device is billed for rounded-up time, the other under the vendor's own name and dearer; a disk that the ledger
knows nothing of, an hour of the day before, a credit and a tax.
"""

import re
import shutil
import sys
import tempfile
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Any

import polars as pl

from rose.pricing.export import focus
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing.export.conftest import whole_bill

ROOT = Path(__file__).parents[3]
SAMPLE, FILE = ROOT / "sample_traces" / "ledger", ROOT / "sample_traces" / "vendor_focus.csv"
#: What the vendor calls the sample's dedicated device, and what its hour costs beside the price book's.
RESOURCE, DEARER = "i-0b7e41c2", Decimal("1.02")
#: The vendor bills device time in steps of this many hours.
STEP_HOURS = Decimal("0.0005")
_COLUMNS = (
    *("BilledCost", "BillingCurrency", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd"),
    *("ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "EffectiveCost", "InvoiceId", "InvoiceIssuerName"),
    *("ProviderName", "ResourceId", "ResourceType", "SkuId"),
)


def book() -> PriceBook:
    text = (ROOT / "docs" / "price-books.md").read_text(encoding="utf-8")
    block = re.search(r"^```toml\n(# prices\.toml\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    return pricebook.parse(block[1], "prices.toml")


def make(to: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Reading a ledger renews its catalog, which is none of the sample's files.
        ledger = Path(shutil.copytree(SAMPLE, Path(folder) / "ledger"))
        exported = Path(folder) / "focus.parquet"
        focus.write(whole_bill(ledger, book()), exported)
        rows = pl.read_parquet(exported)
    devices = (
        rows.filter(pl.col("SkuMeter") == "Device Time", pl.col("ChargeCategory") == "Usage")
        .with_columns(pl.col("Tags").str.json_path_match("$['rose/device']").alias("device"))
        .group_by("ChargePeriodStart", "ChargePeriodEnd", "device")
        .agg(pl.col("PricingQuantity").sum(), pl.col("ContractedUnitPrice").first())
        .sort("ChargePeriodStart", "device")
    )
    made = [_device(row) for row in devices.iter_rows(named=True)]
    last = made[-1]
    begin, end = last["ChargePeriodStart"], last["ChargePeriodEnd"]
    assert begin is not None
    assert end is not None
    hour, day = (begin, end), begin[:10]
    made.append(
        _row(
            "Usage",
            hour,
            "0.000004",
            ResourceId="vol-06f2",
            ResourceType="disk",
            SkuId="disk-standard",
            ChargeDescription="disk, 20 GB",
            ConsumedQuantity="20",
            ConsumedUnit="GB-Hours",
        )
    )
    before = f"{day[:8]}{int(day[8:]) - 1:02}"
    made.append(last | {"ChargePeriodStart": f"{before}T23:00:00Z", "ChargePeriodEnd": f"{day}T00:00:00Z"})
    made.append(_row("Credit", hour, "-0.000100", ChargeDescription="start-up credit"))
    made.append(_row("Tax", hour, "0.000095", ChargeDescription="VAT"))
    pl.DataFrame(made, schema=dict.fromkeys(_row("Usage", hour, "0"), pl.String)).write_csv(to)


def _device(row: dict[str, Any]) -> dict[str, str | None]:
    dedicated = row["device"].startswith("rollout")
    exact, usd = row["PricingQuantity"], row["ContractedUnitPrice"]
    hours = exact if dedicated else (exact / STEP_HOURS).to_integral_value(rounding=ROUND_CEILING) * STEP_HOURS
    cost = (hours * usd * (DEARER if dedicated else 1)).quantize(Decimal("1e-9"))
    return _row(
        "Usage",
        (row["ChargePeriodStart"], row["ChargePeriodEnd"]),
        f"{cost:f}",
        ChargeDescription="on demand, by the hour",
        ConsumedQuantity=f"{hours:f}",
        ConsumedUnit="Hours",
        ResourceId=RESOURCE if dedicated else row["device"],
        ResourceType="instance",
        SkuId="cpu-1",
    )


def _row(category: str, hour: tuple[str, str], cost: str, **cells: str) -> dict[str, str | None]:
    row: dict[str, str | None] = dict.fromkeys(_COLUMNS)
    row |= {"BilledCost": cost, "EffectiveCost": cost, "BillingCurrency": "USD", "ChargeCategory": category}
    row |= {"ChargePeriodStart": hour[0], "ChargePeriodEnd": hour[1], "InvoiceId": "2026-000481"}
    row |= {"InvoiceIssuerName": "A Cloud", "ProviderName": "A Cloud"}
    return row | cells


if __name__ == "__main__":
    make(Path(sys.argv[1]) if sys.argv[1:] else FILE)
