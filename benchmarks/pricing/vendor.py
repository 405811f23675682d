"""A vendor's invoice of a month of the year's fleet held against its charges, beside the same sums in pandas.

The invoice is made up: several rows for each hour of each device, as providers bill by the item. Both ways read the
whole file; only one checks each cell, finds rows that are there twice and says why the sides differ.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.pricing.year import YEAR
from benchmarks.shared import answer, timed
from rose.accept.report import Report, phase
from rose.ledger import catalog

MONTH = f"{YEAR}-01"
#: Rows for each hour of a device, and what all of them cost: an hour of an example's H100 is $3.60 in the sums.
ITEMS, ITEM_USD = 7, "0.514285"


def measure(report: Report, folder: Path, root: Path, devices: int) -> None:
    """Make the invoice, and compare it in both ways; `root` is the ledger of the year."""
    path = folder / "invoice.csv"
    with phase("making a vendor's invoice"):
        rows = make(path, devices)
    told = {}
    for way in ("reconcile", "pandas"):
        with phase(f"comparing {rows:,} rows, {way}"):
            told[way] = answer("pricing.child", way, root, path, MONTH)
    ours, theirs = told["reconcile"], told["pandas"]
    assert abs(ours["usd"] - theirs["usd"]) < 0.01, "both ways sum the invoice alike"
    report.claim(f"reconciling an invoice of {rows:,} rows", ours["cpu_seconds"], "s", 60, "lower")
    report.claim("  memory", ours["rss_peak_bytes"] / 2**20, "MiB", 1024, "lower")
    report.claim("  memory against pandas", ours["rss_peak_bytes"] / theirs["rss_peak_bytes"], "x", 1, "lower")
    report.detail["invoice"] = {"rows": rows, "bytes": path.stat().st_size, **told}
    path.unlink()


def make(path: Path, devices: int) -> int:
    """Write the invoice as CSV; returns its rows."""
    with duckdb.connect() as connection:
        written = connection.execute(
            f"""
            COPY (
                SELECT
                    {ITEM_USD} AS BilledCost, 'USD' AS BillingCurrency, 'Usage' AS ChargeCategory, NULL AS ChargeClass,
                    'device time, item ' || item AS ChargeDescription,
                    strftime(hour + INTERVAL 1 HOUR, '%Y-%m-%dT%H:%M:%SZ') AS ChargePeriodEnd,
                    strftime(hour, '%Y-%m-%dT%H:%M:%SZ') AS ChargePeriodStart,
                    (1 / {ITEMS})::DECIMAL(9, 6) AS ConsumedQuantity, 'Hours' AS ConsumedUnit,
                    {ITEM_USD} AS EffectiveCost, 'INV-1' AS InvoiceId, 'GPU-' || device AS ResourceId,
                    'instance' AS ResourceType, 'sku-1' AS SkuId, '{{"item":"' || item || '"}}' AS Tags
                FROM range({devices}) AS d(device), range({ITEMS}) AS i(item),
                    range(TIMESTAMP '{MONTH}-01', TIMESTAMP '{MONTH}-01' + INTERVAL 1 MONTH, INTERVAL 1 HOUR) AS h(hour)
            ) TO {catalog.quoted(str(path))} (HEADER)
            """
        ).fetchall()
    return int(written[0][0])


def reconcile(root: Path, path: str, month: str) -> dict[str, Any]:
    """Hold a vendor's invoice against a month's charges: seconds of the cores, and what the invoice comes to."""
    from rose.pricing.closing.period import of_month
    from rose.pricing.price_books import pricebook
    from rose.pricing.reconcile import reconcile as compare

    book = pricebook.load("example")
    made, seconds = timed(lambda: compare(root, Path(path), of_month(month), book))
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
        "lines": len(made["lines"]),
        "usd": made["total"]["effective_nano"] / 1e9,
    }


def pandas(root: Path, path: str, month: str) -> dict[str, Any]:
    """The sums of the same invoice by resource and day, and nothing else."""
    import pandas as pd

    del root, month

    def summed() -> Any:
        columns = ["ResourceId", "ChargePeriodStart", "EffectiveCost", "ConsumedQuantity"]
        rows = pd.read_csv(path, usecols=columns, parse_dates=["ChargePeriodStart"])
        by = [rows["ResourceId"], rows["ChargePeriodStart"].dt.date]
        return rows.groupby(by)[["EffectiveCost", "ConsumedQuantity"]].sum()

    sums, seconds = timed(summed)
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time(),
        "lines": len(sums),
        "usd": float(sums["EffectiveCost"].sum()),
    }
