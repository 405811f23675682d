import dataclasses
from pathlib import Path

import pytest

from rose.events import Device
from rose.ledger.ledger import Ledger
from rose.pricing import period
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.watch import budget
from rose.pricing.watch.forecast import BURST
from tests.pricing.closing.conftest import BOOK, DAY_NS, HOUR_NS, T0_NS, begun, close, slice_, weeks_events, write

JUNE = period.of_month("2026-06")
USD = 10**9


def at_us(days: float) -> int:
    return (T0_NS + int(days * DAY_NS)) // 1000


def test_the_last_budget_that_was_set_holds_and_the_others_stay(fleet: Path) -> None:
    assert budget.set_budget(Ledger(fleet), "research", "1,000.50", JUNE, by="ann") == 1_000_500_000_000
    budget.set_budget(Ledger(fleet), "research", "$900", JUNE, by="bob")
    budget.set_budget(Ledger(fleet), "chat", "0", JUNE)
    budget.set_budget(Ledger(fleet), "research", "7", period.of_month("2026-07"))
    assert budget.budgets(Ledger(fleet), JUNE) == {"chat": 0, "research": 900 * USD}
    recorded = [row for row in Ledger(fleet).book_details(budget.BUDGETED) if row["team"] == "research"]
    assert [row["budget_nano"] for row in recorded] == [1_000_500_000_000, 900 * USD, 7 * USD]
    assert recorded[0]["set_by"] == "ann"


@pytest.mark.parametrize(
    ("team", "usd", "says"),
    [
        ("x", "lots", "'lots' is not an amount"),
        ("x", "-1", "must be 0 or more"),
        ("x", "0.0000000001", "9 decimals"),
        ("x", "nan", "is not an amount"),
        ("x", "1e30", "0 or more dollars"),
        (" ", "1", "no name"),
    ],
)
def test_what_is_no_budget_is_refused(fleet_kept: Path, team: str, usd: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        budget.set_budget(Ledger(fleet_kept), team, usd, JUNE)
    assert budget.budgets(Ledger(fleet_kept), JUNE) == {}


def test_what_is_spent_is_exact_and_open_or_closed(weeks: Path) -> None:
    close(weeks, Period(T0_NS, T0_NS + 5 * DAY_NS), now_us=at_us(6))
    budget.set_budget(Ledger(weeks), "research", "100", JUNE)
    budget.set_budget(Ledger(weeks), "chat", "1000", JUNE)
    budget.set_budget(Ledger(weeks), "nobody", "5", JUNE)
    # At noon of the 16th: 15 whole days, on one of which research worked 3 h, and an hour of the 16th.
    chat, nobody, research = budget.show(Ledger(weeks), JUNE, BOOK, now_us=at_us(15.5))
    assert research.spent.value == (15 + 2 + 1) * 3_600_000_000
    assert research.closed.value == 5 * 3_600_000_000
    assert research.open.value == 13 * 3_600_000_000
    assert research.left.value == 100 * USD - 64_800_000_000
    # Up to 13:00: 15 days, less what research had, and 12 h of the 16th.
    assert chat.spent.value == (15 * 24 - 17 + 12) * 3_600_000_000
    assert chat.has_charges
    assert research.has_charges
    assert research.forecast.why == "not enough days: need 28 whole UTC days since the first charge, have 15"
    assert (nobody.spent.value, nobody.has_charges, nobody.over.value) == (0, False, None)
    assert nobody.forecast.text == "this team has no charge: check how its name is spelt"
    assert (research.forecast.stamp.from_ns, research.spent.stamp.to_ns) == (T0_NS, T0_NS + 15 * DAY_NS + 13 * HOUR_NS)
    assert research.to_json()["spent"]["value"] == 64_800_000_000


def test_a_new_month_rests_on_the_last_one_and_a_short_history_says_so(weeks: Path) -> None:
    budget.set_budget(Ledger(weeks), "chat", "1000", JUNE)
    (chat,) = budget.show(Ledger(weeks), JUNE, BOOK, now_us=at_us(2.5))
    assert chat.forecast.value is None
    assert chat.forecast.why == "not enough days: need 28 whole UTC days since the first charge, have 2"
    assert chat.over.value is None
    budget.set_budget(Ledger(weeks), "chat", "1000", period.of_month("2026-07"))
    with pytest.raises(PricingError, match="has not begun"):
        budget.show(Ledger(weeks), period.of_month("2026-07"), BOOK, now_us=at_us(2.5))
    # It left on 21 June.
    (july,) = budget.show(Ledger(weeks), period.of_month("2026-07"), BOOK, now_us=at_us(32))
    assert (july.spent.value, july.forecast.value) == (0, None)
    assert str(july.forecast.why).endswith("need 17 more days")


def test_a_day_that_began_late_is_no_whole_day(tmp_path: Path) -> None:
    # The fleet began at 06:00 of the first day: of three days that are over, two are whole.
    started, joined = begun()
    assert isinstance(joined, Device)
    late = [started, dataclasses.replace(joined, t_ns=T0_NS + 6 * HOUR_NS)]
    root = write(tmp_path / "ledger", [*late, *(slice_(6 * 3600 + n * 86_400, idle=86_400) for n in range(3))])
    budget.set_budget(Ledger(root), "chat", "1000", JUNE)
    (chat,) = budget.show(Ledger(root), JUNE, BOOK, now_us=at_us(3.0))
    assert chat.forecast.why == "not enough days: need 28 whole UTC days since the first charge, have 2"


def test_the_fleet_and_every_team_are_forecast_with_a_budget_or_without(tmp_path: Path, weeks_kept: Path) -> None:
    july = period.of_month("2026-07")
    steady = write(tmp_path / "ledger", weeks_events(40))
    fleet, chat, research = budget.expected(Ledger(steady), july, BOOK, now_us=at_us(32))
    assert [row.team for row in (fleet, chat, research)] == [None, "chat", "research"]
    assert all(row.forecast.value is not None and row.spent.value for row in (fleet, chat))
    # It worked for 3 h of one day and for 1 h of the others.
    assert (research.forecast.value, str(research.forecast.why).partition(" on ")[0]) == (None, BURST)
    assert chat.forecast.low is not None
    assert chat.forecast.high is not None
    assert chat.forecast.low <= int(chat.forecast.value or 0) <= chat.forecast.high
    (alone,) = budget.expected(Ledger(steady), july, BOOK, "chat", now_us=at_us(32))
    assert alone == chat
    june = budget.expected(Ledger(weeks_kept), JUNE, BOOK, now_us=at_us(40))
    assert june[0].forecast.value == june[0].spent.value == sum(int(row.spent.value or 0) for row in june[1:])
    assert june[0].to_json()["team"] is None


def test_a_team_that_no_charge_names_and_a_month_without_a_budget_are_errors(weeks_kept: Path) -> None:
    with pytest.raises(PricingError, match="no budget is set for 2026-06"):
        budget.show(Ledger(weeks_kept), JUNE, BOOK)
    with pytest.raises(PricingError, match=r"have no charge of team 'reserch'; did you mean 'research'"):
        budget.expected(Ledger(weeks_kept), JUNE, BOOK, "reserch", now_us=at_us(40))


def test_a_forecast_says_why_it_leaves_out_the_days_before_the_month(fleet: Path) -> None:
    before_us = at_us(-3)
    joined = Device(
        action="joined", device_id="d", pool="serving", device_class="h100-sxm", t_ns=1000 * before_us, at_us=before_us
    )
    devices = [joined, dataclasses.replace(joined, action="left", t_ns=joined.t_ns + 1000, at_us=before_us + 1)]
    write(fleet, devices, "simulated", "simulated")
    (fleet_row, *_) = budget.expected(Ledger(fleet), JUNE, BOOK, now_us=at_us(0.5))
    assert "the days before 2026-06 cannot be priced: " in fleet_row.forecast.text
    assert "different provenance (live, simulated)" in fleet_row.forecast.text
