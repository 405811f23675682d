from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.alerts.config import AnomalyRule, BudgetRule, MeterRule, SloRule, UnverifiedRule
from rose.pricing.alerts.rules import (
    Alert,
    Budget,
    Facts,
    Meter,
    OddDay,
    Outcome,
    Requests,
    Unknown,
    Verification,
    evaluate,
)

NOW_US = 1_780_000_000_000_000
HOUR_US = 3_600_000_000
TO: dict[str, Any] = {"name": "rule", "channels": ["c"]}
BUDGETS = BudgetRule(kind="budget", at=[0.5, 0.8, 1.0], **TO)
ODD = AnomalyRule(kind="anomaly", days=2, **TO)
SLO = SloRule(kind="slo", target=0.99, requests_min=100, **TO)
UNVERIFIED = UnverifiedRule(kind="unverified", **TO)
METER = MeterRule(kind="meter", **TO)


def holding(rule: Any, facts: Facts) -> dict[str, Alert]:
    return {alert.key: alert for alert in evaluate(rule, facts, NOW_US).alerts}


def spent(nano: int, forecast: int | None = None, of: int = 100) -> Facts:
    row = Budget(team="research", month="2026-05", budget_nano=of * 10**9, spent_nano=nano * 10**9, forecast_nano=None)
    return Facts(budgets=(replace(row, forecast_nano=None if forecast is None else forecast * 10**9),))


def test_the_highest_share_of_a_budget_that_was_reached_is_the_level() -> None:
    assert holding(BUDGETS, spent(49)) == {}
    (alert,) = holding(BUDGETS, spent(80)).values()
    assert (alert.level, alert.title) == (800, "research has spent 80% of its budget for 2026-05")
    assert alert.text == "Team research has spent $80.00 of $100.00 in 2026-05."
    assert {alert.level for alert in holding(BUDGETS, spent(250)).values()} == {1000}


def test_an_amount_has_its_terms_beside_it() -> None:
    (row,) = spent(90).budgets  # type: ignore[misc]
    (alert,) = holding(BUDGETS, Facts(budgets=(replace(row, terms="amortized; USD, simulated"),))).values()
    assert alert.text.endswith(" in 2026-05 (amortized; USD, simulated).")


def test_a_budget_of_nothing_is_reached_by_anything_and_by_nothing_it_is_not() -> None:
    assert holding(BUDGETS, spent(0, of=0)) == {}
    assert len(holding(BUDGETS, spent(1, of=0))) == 1


def test_a_forecast_alerts_until_the_budget_is_spent_and_an_unknown_one_says_nothing() -> None:
    (key,) = holding(BUDGETS, spent(10, forecast=120))
    assert key == "rule/2026-05/research/forecast"
    assert holding(BUDGETS, spent(10, forecast=100)) == {}
    assert list(holding(BUDGETS, spent(101, forecast=120))) == ["rule/2026-05/research/spent"]
    assert "rule/2026-05/research/forecast" not in evaluate(BUDGETS, spent(10), NOW_US).looked_at
    assert holding(BUDGETS.model_copy(update={"forecast": False}), spent(10, forecast=120)) == {}


def test_an_odd_day_alerts_while_it_stands_out() -> None:
    days = tuple(OddDay(day=date(2026, 6, n), metric="cost", stands_out=n != 3, text=f"day {n}") for n in range(1, 5))
    assert list(holding(ODD, Facts(odd_days=days))) == ["rule/2026-06-04/cost"]
    ordinary = (*days[:-1], replace(days[-1], stands_out=False))
    outcome = evaluate(ODD, Facts(odd_days=ordinary), NOW_US)
    assert outcome.alerts == ()
    assert outcome.looked_at == {"rule/2026-06-03/cost", "rule/2026-06-04/cost"}


def requests(count: int, kept: int) -> Facts:
    return Facts(requests={3600: Requests(requests=count, kept=kept, from_us=NOW_US - HOUR_US, to_us=NOW_US)})


def test_serving_under_its_target_alerts_and_few_requests_say_nothing() -> None:
    assert holding(SLO, requests(100, 99)) == {}
    (alert,) = holding(SLO, requests(1000, 989)).values()
    assert alert.title == "serving kept 98.90% of its promises, under 99.00%"
    assert "11 missed" in alert.text
    few = evaluate(SLO, requests(99, 0), NOW_US)
    assert (few.alerts, few.looked_at) == ((), frozenset())
    assert few.unknown is not None
    assert "99 requests were served since" in few.unknown


@given(st.integers(1, 10**6), st.decimals("0.01", "1", places=4))
def test_exactly_the_target_is_not_under_it(thousands: int, target: Any) -> None:
    rule = SLO.model_copy(update={"target": float(target), "requests_min": 1})
    count = thousands * 10**4
    kept = int(target * count)
    assert holding(rule, requests(count, kept)) == {}
    assert len(holding(rule, requests(count, kept - 1))) == 1


def test_a_ledger_that_is_not_verified_alerts() -> None:
    def found(until_us: int | None, problems: int = 0) -> list[str]:
        facts = Facts(verification=Verification(until_us=until_us, problems=problems))
        return [alert.title for alert in holding(UNVERIFIED, facts).values()]

    assert found(NOW_US - 26 * HOUR_US) == []
    assert found(NOW_US - 26 * HOUR_US - 1) == ["the ledger was not verified for 26 h 00 min 00 s"]
    assert found(None) == ["the ledger was never verified"]
    assert found(NOW_US, 3) == ["the ledger has 3 problems"]


def test_a_device_that_works_unmetered_alerts_and_one_that_rests_does_not() -> None:
    ns = NOW_US * 1000
    hour_ns = HOUR_US * 1000
    working = Meter(run_id="a/b", device_id="c", read_ns=ns - hour_ns - 1, seen_ns=ns)
    (key,) = holding(METER, Facts(meters=(working, Meter(run_id="a", device_id="b/c", read_ns=0, seen_ns=hour_ns))))
    assert key == "rule/a%2Fb/c"


@pytest.mark.parametrize("rule", [BUDGETS, ODD, SLO, UNVERIFIED, METER])
def test_what_is_not_known_neither_holds_nor_ceases_to(rule: Any) -> None:
    why = Unknown("no price book")
    facts = Facts(budgets=why, odd_days=why, requests={3600: why}, verification=why, meters=why)
    assert evaluate(rule, facts, NOW_US) == Outcome(rule=rule, unknown="no price book")


AMOUNT = st.integers(0, 10**15)
FACTS = st.builds(
    Facts,
    budgets=st.lists(
        st.builds(
            Budget,
            team=st.text(),
            month=st.just("2026-05"),
            budget_nano=AMOUNT,
            spent_nano=AMOUNT,
            forecast_nano=st.none() | AMOUNT,
        ),
        max_size=3,
        unique_by=lambda row: row.team,
    ).map(tuple),
    odd_days=st.lists(
        st.builds(
            OddDay,
            day=st.dates(),
            metric=st.sampled_from(["cost", "idle"]),
            stands_out=st.booleans(),
        ),
        max_size=3,
        unique_by=lambda row: (row.day, row.metric),
    ).map(tuple),
    requests=st.builds(
        lambda count, missed: {3600: Requests(requests=count, kept=max(0, count - missed), from_us=0, to_us=NOW_US)},
        AMOUNT,
        AMOUNT,
    ),
    verification=st.builds(Verification, until_us=st.none() | st.integers(0, NOW_US), problems=st.integers(0, 9)),
    meters=st.lists(
        st.builds(
            Meter, run_id=st.text(), device_id=st.text(), read_ns=st.integers(0, 2**61), seen_ns=st.integers(0, 2**61)
        ),
        max_size=3,
        unique_by=lambda row: (row.run_id, row.device_id),
    ).map(tuple),
)


@given(FACTS, st.sampled_from([BUDGETS, ODD, SLO, UNVERIFIED, METER]))
def test_whatever_holds_was_looked_at_and_has_a_key_of_its_own(facts: Facts, rule: Any) -> None:
    outcome = evaluate(rule, facts, NOW_US)
    keys = [alert.key for alert in outcome.alerts]
    assert len(keys) == len(set(keys))
    assert set(keys) <= outcome.looked_at
    assert all(alert.title and alert.rule == rule.name for alert in outcome.alerts)
    assert evaluate(rule, facts, NOW_US) == outcome
