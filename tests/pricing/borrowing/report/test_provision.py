from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.provision import NO_PENALTY
from rose.pricing.borrowing.report import provision, tables
from rose.pricing.money import PricingError
from tests.pricing.conftest import printed

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9
DAY_S = 86_400


def bursty() -> list[events.Event]:
    """Three days of a serving device: every 100 s a burst of 10 s after 90 s at half load, lent every other time.

    A request comes in each burst; while lent it misses its budget. On the second day none misses.
    """
    made: list[events.Event] = [
        events.Run(action="started", name="bursty", at_us=T0_NS // 1000),
        events.Device(action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h100-sxm"),
    ]
    for day in range(3):
        for n in range(12):
            t0_ns = T0_NS + (day * DAY_S + n * 100) * S
            lease_id = f"L{day}-{n}" if n % 2 else None
            late = bool(lease_id) and day != 1
            made += [slice_(t0_ns, 90, 45, lease_id), slice_(t0_ns + 90 * S, 10, 10, lease_id)]
            made.append(
                events.Request(
                    request_id=f"{day}/{n}",
                    device_id="s0",
                    lease_id=lease_id,
                    outcome="completed",
                    prompt_tokens=1,
                    output_tokens=1,
                    ttft_ns=2 if late else 1,
                    tpot_mean_ns=None,
                    tpot_max_ns=None,
                    e2e_ns=S,
                    ttft_budget_ns=1,
                    tpot_budget_ns=1,
                    send_delay_ns=0,
                    at_us=(t0_ns + 96 * S) // 1000,
                )
            )
    return made


def slice_(t0_ns: int, seconds: int, serving_s: int, lease_id: str | None) -> events.DeviceSlice:
    rest_ns = (seconds - serving_s) * S
    return events.DeviceSlice(
        device_id="s0",
        lease_id=lease_id,
        t0_ns=t0_ns,
        t1_ns=t0_ns + seconds * S,
        serving_ns=serving_s * S,
        rollout_ns=rest_ns if lease_id else 0,
        train_ns=0,
        sync_ns=0,
        activation_ns=0,
        headroom_ns=0,
        idle_ns=0 if lease_id else rest_ns,
    )


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.toml"
    path.write_text(EXAMPLE.replace("violation_usd = 0\n", "violation_usd = 3\n"), encoding="utf-8")
    return path


def test_three_days_by_hand(write_ledger: Any, book: Path) -> None:
    document = provision.build(write_ledger(bursty()), "run", book, by_lease=True)
    half = document.rates[2]
    # 12 bursts a day, each after 9 windows of 10 s at half load.
    assert (half.windows.value, half.bursts.value) == (3 * 12 * 9, 36)
    assert half.hazard_per_hour.value == pytest.approx(3600 / 90)
    # Of 18 lent bursts 12 had a miss, of 18 others none.
    assert half.extra_misses.value == pytest.approx(12 / 18)
    days = {row.day: row for row in document.days}
    assert list(days) == ["2026-06-01", "2026-06-02", "2026-06-03"]
    # Six lent stretches of 90 s a day, at 1/90 bursts a second and one miss each by what the first day showed.
    first, second, third = days.values()
    usd = 10**9
    assert (first.opening.value, first.accrued.value, first.rates_of) == (0, 18 * usd, "earlier days and this one")
    assert (second.accrued.value, second.rates_of) == (18 * usd, "earlier days")
    # By then half of the lent bursts had shown no miss.
    assert third.accrued.value == 9 * usd
    assert [row.realised.value for row in days.values()] == [18 * usd, 0, 18 * usd]
    assert [row.released.value for row in days.values()] == [0, 0, 0]
    assert [row.closing.value for row in days.values()] == [0, 18 * usd, 9 * usd]
    assert document.accrued.value == sum(figure.value or 0 for figure in document.leases.values()) == 45 * usd
    assert document.leases["L0-1"].value == 3 * usd
    assert document.realised.value == 36 * usd
    assert document.realised.low is None
    assert "confounded: leases were never withheld at random" in (document.realised.no_interval or "")
    assert document.not_provided_for.value == 0
    assert document.break_even.text.startswith("not enough data")
    text = printed(tables.provision(document))
    assert "2026-06-03" in text
    assert "A missed budget costs $3.00 (price book)" in text
    assert "confounded" in text


def test_too_little_is_said_and_nothing_is_booked(sample_kept: Path, book: Path) -> None:
    document = provision.build(sample_kept, "run", book)
    # The sample's slices carry no lease, so nothing was lent by them.
    assert (document.accrued.value, document.accrued.text) == (None, "nothing was lent")
    assert all(row.provision_per_device_hour.value is None for row in document.rates.values())
    assert "not enough data" in document.rates[0].extra_misses.text
    assert document.realised.value == 3 * 10**9
    assert document.break_even.value is not None
    (day,) = document.days
    assert (day.opening.value, day.closing.value) == (None, None)


def test_a_book_without_a_penalty_provides_nothing_and_says_why(write_ledger: Any) -> None:
    document = provision.build(write_ledger(bursty()), "run")
    unset = (document.penalty, document.accrued, document.realised, document.realised_per_device_hour)
    assert {(figure.value, figure.text) for figure in unset} == {(None, NO_PENALTY)}
    assert all(rate.provision_per_device_hour.value is None for rate in document.rates.values())
    # How often load rises needs no price.
    assert document.rates[2].bursts.value == 36
    assert {row.closing.value for row in document.days} == {None}
    assert f"What a missed budget costs is {NO_PENALTY}." in printed(tables.provision(document))


@pytest.mark.parametrize("seconds", [0, 7, 100_000])
def test_a_horizon_divides_a_day(sample_kept: Path, seconds: int) -> None:
    with pytest.raises(PricingError, match="must be whole seconds that divide a day"):
        provision.build(sample_kept, "run", horizon_s=seconds)
