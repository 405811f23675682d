from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.borrowing.provision import NO_PENALTY
from rose.pricing.borrowing.report.provision import (
    ACCRUED,
    BREAK_EVEN_CASH,
    BREAK_EVEN_TIME,
    NOT_PROVIDED,
    PENALTY,
    REALISED,
    REALISED_HOURLY,
    provision,
)
from rose.pricing.money import PricingError
from rose.pricing.run.priced import PricedRun
from tests.pricing.conftest import section

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
    answer = section(write_ledger(bursty()), provision, "run", book, by_lease=True)
    half = answer.table("rates").row("40 to 60%")
    # 12 bursts a day, each after 9 windows of 10 s at half load.
    assert (half["windows"].value, half["bursts"].value) == (3 * 12 * 9, 36)
    assert half["bursts an hour"].value == pytest.approx(3600 / 90)
    # Of 18 lent bursts 12 had a miss, of 18 others none.
    assert half["extra misses of a burst"].value == pytest.approx(12 / 18)
    days = answer.table("days").records()
    assert [row["day"] for row in days] == ["2026-06-01", "2026-06-02", "2026-06-03"]
    # Six lent stretches of 90 s a day, at 1/90 bursts a second and one miss each by what the first day showed.
    usd = 10**9
    assert (days[0]["opening"].value, days[0]["rates of"]) == (0, "earlier days and this one")
    assert days[1]["rates of"] == "earlier days"
    # By the third day half of the lent bursts had shown no miss.
    assert [row["accrued"].value for row in days] == [18 * usd, 18 * usd, 9 * usd]
    assert [row["realised"].value for row in days] == [18 * usd, 0, 18 * usd]
    assert [row["released"].value for row in days] == [0, 0, 0]
    assert [row["closing"].value for row in days] == [0, 18 * usd, 9 * usd]
    leases = answer.table("leases")
    assert sum(row["accrued"].value for row in leases.records()) == 45 * usd
    assert answer.figure("totals", ACCRUED).value == 45 * usd
    assert leases.row("L0-1")["accrued"].value == 3 * usd
    realised = answer.figure("totals", REALISED)
    assert (realised.value, realised.low) == (36 * usd, None)
    assert "confounded: leases were never withheld at random" in (realised.no_interval or "")
    assert answer.figure("totals", NOT_PROVIDED).value == 0
    assert answer.figure("totals", BREAK_EVEN_TIME).text.startswith("not enough data")
    assert answer.figure("totals", PENALTY).value == 3 * usd


def test_too_little_is_said_and_nothing_is_booked(sample_kept: Path, book: Path) -> None:
    answer = section(sample_kept, provision, "run", book)
    # The sample's slices carry no lease, so nothing was lent by them.
    accrued = answer.figure("totals", ACCRUED)
    assert (accrued.value, accrued.text) == (None, "nothing was lent")
    rates = answer.table("rates").records()
    assert all(row["provision a lent device-hour"].value is None for row in rates)
    assert "not enough data" in rates[0]["extra misses of a burst"].text
    assert answer.figure("totals", REALISED).value == 3 * 10**9
    assert answer.figure("totals", BREAK_EVEN_TIME).value is not None
    (day,) = answer.table("days").records()
    assert (day["opening"].value, day["closing"].value) == (None, None)


def test_a_book_without_a_penalty_provides_nothing_and_says_why(write_ledger: Any) -> None:
    answer = section(write_ledger(bursty()), provision, "run")
    unset = [answer.figure("totals", name) for name in (PENALTY, ACCRUED, REALISED, REALISED_HOURLY)]
    assert {(figure.value, figure.text) for figure in unset} == {(None, NO_PENALTY)}
    rates = answer.table("rates")
    assert all(row["provision a lent device-hour"].value is None for row in rates.records())
    # How often load rises needs no price.
    assert rates.row("40 to 60%")["bursts"].value == 36
    assert {row["closing"].value for row in answer.table("days").records()} == {None}


@pytest.mark.parametrize("seconds", [0, 7, 100_000])
def test_a_horizon_divides_a_day(priced_sample: PricedRun, seconds: int) -> None:
    with pytest.raises(PricingError, match="must be whole seconds that divide a day"):
        provision(priced_sample, horizon_s=seconds)


def test_every_break_even_has_its_definition_in_the_glossary() -> None:
    glossary = (Path(__file__).parents[4] / "docs" / "glossary.md").read_text(encoding="utf-8")
    for name in (BREAK_EVEN_TIME, BREAK_EVEN_CASH):
        assert glossary.count(f"| {name} | ") == 1
