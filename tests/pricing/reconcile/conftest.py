import csv
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.closing import close as closing
from rose.pricing.period import NS_PER_DAY, Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing import any_event
from tests.pricing.closing.conftest import BOOK_TOML

S = 10**9
T0_NS = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * S
DAYS = 3
PERIOD = Period(T0_NS, T0_NS + DAYS * NS_PER_DAY)
NANO = 10**9
#: By hardware: name in its run, class, dollars an hour. Two runs have a device that each calls r0.
DEVICES = {
    "GPU-0": ("run-a", "s0", "h100-sxm", "3.60"),
    "GPU-1": ("run-a", "s1", "h100-sxm", "3.60"),
    "GPU-2": ("run-a", "r0", "l40s", "1.00"),
    "GPU-3": ("run-b", "r0", "l40s", "1.00"),
}
BOOK_TEXT = (
    BOOK_TOML
    + """
[[device]]
class = "l40s"
usd_per_hour = 1.00
commitment = "on demand"
valid_from = 2026-01-01
source = "contract 18"
source_date = 2026-01-01
"""
)
BOOK = pricebook.parse(BOOK_TEXT, "book.toml")
#: Four devices for three days of 24 hours.
LEDGER_NANO = DAYS * 24 * (2 * 3_600_000_000 + 2 * 1_000_000_000)

Row = dict[str, str]
COLUMNS = (
    *("BilledCost", "BillingCurrency", "ChargeCategory", "ChargeClass", "ChargePeriodStart", "ChargePeriodEnd"),
    *("ConsumedQuantity", "ConsumedUnit", "EffectiveCost", "InvoiceId", "PricingQuantity", "PricingUnit"),
    *("ResourceId", "ResourceType", "SkuId", "Tags"),
)


@pytest.fixture(scope="session")
def fleet_of_four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("four") / "ledger"
    for run_id in ("run-a", "run-b"):
        with LedgerWriter.open(root, f"writer-{run_id}", run_id, "live") as ledger:
            for event in _events(run_id):
                ledger.record(event, durable=False)
    closing.close(
        Ledger(root),
        Period(T0_NS, T0_NS + NS_PER_DAY),
        BOOK,
        now_us=(T0_NS + 2 * NS_PER_DAY) // 1000,
        by="ann",
        with_open_runs=True,
    )
    return root


def _events(run_id: str) -> Iterable[events.Event]:
    begin_us, end_us = T0_NS // 1000, PERIOD.to_ns // 1000
    yield events.Run(action="started", name=run_id, at_us=begin_us)
    for hardware_id, (of_run, device_id, device_class, _) in DEVICES.items():
        if of_run != run_id:
            continue
        fields = {"device_id": device_id, "hardware_id": hardware_id, "device_class": device_class}
        yield any_event.device(t_ns=T0_NS, at_us=begin_us, **fields)
        for day in range(DAYS):
            yield any_event.slice_(T0_NS + day * NS_PER_DAY, device_id, unit_ns=3600 * S, serving=20, idle=4)
        yield any_event.device(action="left", t_ns=PERIOD.to_ns, at_us=end_us, **fields)
    if run_id == "run-a":
        sizes = {"wire_bytes": 10**10, "dense_bytes": 10**10}
        yield any_event.sync(device_id="s0", policy_version=3, at_us=begin_us + 7, **sizes)
    yield events.Run(action="ended", name=run_id, at_us=end_us)


def mapped(*entries: str) -> PriceBook:
    cited = 'source = "console"\nsource_date = 2026-06-01\n'
    return pricebook.parse(BOOK_TEXT + "".join(f"\n[[vendor_resource]]\n{text}\n{cited}" for text in entries), "b.toml")


def charge(resource: str = "GPU-0", day: int = 1, usd: str = "86.40", hours: str | None = "24", **cells: str) -> Row:
    """A row of a vendor's invoice: a day of June of a resource."""
    row = dict.fromkeys(COLUMNS, "")
    row |= {"BilledCost": usd, "EffectiveCost": usd, "BillingCurrency": "USD", "ChargeCategory": "Usage"}
    row |= {"ChargePeriodStart": f"2026-06-{day:02}T00:00:00Z", "ChargePeriodEnd": f"2026-06-{day + 1:02}T00:00:00Z"}
    row |= {"ConsumedQuantity": hours or "", "ConsumedUnit": "Hours" if hours else "", "InvoiceId": "INV-7"}
    row |= {"ResourceId": resource, "ResourceType": "instance", "SkuId": "sku-1"}
    return row | cells


def whole(*, without: Sequence[str] = (), **names: str) -> list[Row]:
    return [
        charge(names.get(hardware_id.replace("-", "_"), hardware_id), day, f"{24 * float(usd):.2f}")
        for hardware_id, (_, _, _, usd) in DEVICES.items()
        if hardware_id not in without
        for day in range(1, DAYS + 1)
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
