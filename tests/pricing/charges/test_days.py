from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing import charges
from rose.pricing.charges.days import DeviceDay, price_days
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import load

BOOK = load("example")
NOON_NS = 1_772_323_200 * 10**9 - 12 * 3600 * 10**9  # 2026-02-28T12:00Z; the H100 price changes at midnight
HOUR = 3600 * 10**9


def fleet(**slices: int) -> list[events.Event]:
    buckets: dict[str, Any] = {f"{bucket}_ns": slices.get(bucket, 0) for bucket in events.BUCKETS}
    us = NOON_NS // 1000
    return [
        events.Run(action="started", name="n", at_us=us),
        events.Device(
            action="joined", device_id="d", t_ns=NOON_NS, pool="serving", device_class="h100-sxm", at_us=us
        ),
        events.DeviceSlice(device_id="d", t0_ns=NOON_NS, t1_ns=NOON_NS + sum(slices.values()), at_us=us, **buckets),
    ]  # fmt: skip


def test_a_day_ends_at_midnight_utc_and_has_its_own_price(write_ledger: Any) -> None:
    days = price_days(write_ledger(fleet(serving=12 * HOUR, idle=12 * HOUR)), BOOK)
    before, after = (days[DeviceDay(day, "run", "replay", "d")] for day in (date(2026, 2, 28), date(2026, 3, 1)))
    assert before.bucket_ns == after.bucket_ns == {"serving": 6 * HOUR, "idle": 6 * HOUR}
    assert before.cost_nano == {"serving": 6 * 1_700_000_000, "idle": 6 * 1_700_000_000}
    assert after.cost_nano == {"serving": 6 * 2_350_000_000, "idle": 6 * 2_350_000_000}


@pytest.mark.long
def test_days_sum_to_the_charges_and_provenances_stay_apart(write_ledger: Any) -> None:
    root: Path = write_ledger(fleet(serving=7 * HOUR + 1, rollout=3, idle=11 * HOUR))
    write_ledger(fleet(serving=HOUR), root=root, writer="second", run_id="other", provenance="simulated")
    days = price_days(root, BOOK)
    for provenance in ("replay", "simulated"):
        total = charges.price(root, BOOK, provenance=provenance).total_nano
        assert sum(sum(c.cost_nano.values()) for d, c in days.items() if d.provenance == provenance) == total


def test_a_day_without_a_price_is_refused(write_ledger: Any) -> None:
    root = write_ledger(fleet(serving=HOUR))
    cut = BOOK.model_copy(update={"device": [p for p in BOOK.device if p.device_class != "h100-sxm"]})
    with pytest.raises(PricingError, match="h100-sxm"):
        price_days(root, cut)
