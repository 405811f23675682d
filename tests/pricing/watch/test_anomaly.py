from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.closing.bill import Bill, bill
from rose.pricing.closing.period import Period
from rose.pricing.figures import BookFacts
from rose.pricing.money import signed_usd
from rose.pricing.watch.anomaly import METRICS, RULE, Watch, roughly, watch
from tests.pricing.closing.conftest import BOOK, DAY_NS, T0_NS, charges_of

MONTH = Period(T0_NS, T0_NS + 40 * DAY_NS)
HOUR = 3_600_000_000_000


def watch_days(days: list[list[dict[str, Any]]], judged: Period = MONTH) -> Watch:
    rows = [{"hour": datetime(2026, 6, 1) + timedelta(days=n), **row} for n, day in enumerate(days) for row in day]
    frame = charges_of(rows).with_columns(closed=pl.lit(False))
    return watch(
        Bill(frame=frame, period=MONTH, provenance="live", book=BookFacts.from_book(BOOK), verified=True, closes=()),
        judged,
    )


def rollout(hours: int, rate: int = 100, tokens: int = 1000, **more: Any) -> dict[str, Any]:
    return {
        "bucket": "rollout",
        "team": "research",
        "fate": "accepted",
        "ns": hours * HOUR,
        "cost_nano": hours * rate,
        "tokens": tokens,
        **more,
    }


def test_a_day_of_more_work_stands_out() -> None:
    result = watch_days([[rollout(10)]] * 8 + [[rollout(25)]])
    by_metric = {anomaly.metric: anomaly for anomaly in result.anomalies}
    assert set(by_metric) == {"cost", "cost per million useful tokens"}
    cost = by_metric["cost"]
    assert (cost.day, cost.compared_with) == (date(2026, 6, 9), date(2026, 6, 8))
    assert (cost.value.value, cost.median.value, cost.change_nano) == (2500, 1000, 1500)
    assert cost.value.stamp.from_ns == T0_NS + 8 * DAY_NS
    # 1% of the median is a deviation, where all days are alike.
    assert cost.deviations == 150.0
    assert cost.why == "rose changes --period 2026-06-09 --before 2026-06-08"
    # As many tokens cost more.
    tokens = by_metric["cost per million useful tokens"]
    assert tokens.change_nano == 1_500_000


def test_a_new_rate_and_fewer_tokens_stand_out() -> None:
    days = [[rollout(10), {"bucket": "idle", "ns": HOUR, "cost_nano": 7}]] * 8
    (cost, tokens) = watch_days(
        [*days, [rollout(10, rate=200), {"bucket": "idle", "ns": HOUR, "cost_nano": 7}]]
    ).anomalies
    assert (cost.change_nano, tokens.change_nano) == (1000, 1_000_000)
    (fewer,) = watch_days([[rollout(10)]] * 8 + [[rollout(10, tokens=500)]]).anomalies
    assert (fewer.metric, fewer.change_nano) == ("cost per million useful tokens", 1_000_000)


def test_waste_and_idle_are_watched_by_themselves() -> None:
    lost = rollout(1, tokens=10, fate="lost", cause="preempted")
    rejected = rollout(1, tokens=10, fate="rejected", cause="rejected")
    assert not [a for a in watch_days([[rollout(10)]] * 8 + [[rollout(10), rejected]]).anomalies if a.metric == "waste"]
    result = watch_days([[rollout(10)]] * 8 + [[rollout(10), lost]])
    waste = next(anomaly for anomaly in result.anomalies if anomaly.metric == "waste")
    # There was none before, so there is nothing to measure by.
    assert (waste.median.value, waste.value.value, waste.deviations) == (0, 100, None)
    idle = {"bucket": "idle", "ns": HOUR}
    result = watch_days([[rollout(10), {**idle, "cost_nano": 50}]] * 8 + [[rollout(10), {**idle, "cost_nano": 55}]])
    assert [(anomaly.metric, anomaly.change_nano) for anomaly in result.anomalies] == [("idle", 5)]


def test_a_usual_spread_does_not_stand_out() -> None:
    spread = [[rollout(hours)] for hours in (8, 12, 9, 11, 10, 13, 7, 10)]
    assert watch_days([*spread, [rollout(15)]]).anomalies == ()
    assert {anomaly.metric for anomaly in watch_days([*spread, [rollout(40)]]).anomalies} >= {"cost"}


def test_too_few_days_are_said_and_not_judged() -> None:
    result = watch_days([[rollout(10)]] * 6 + [[rollout(90)]])
    assert (len(result.judged), len(result.not_judged), result.anomalies) == (0, 7, ())
    assert result.to_json()["not_enough_data"][0] == "2026-06-01"
    # Days long ago are no baseline.
    empty: list[list[dict[str, Any]]] = [[]] * 25
    result = watch_days([[rollout(10)]] * 7 + empty + [[rollout(90)]])
    assert date(2026, 7, 3) in result.not_judged


def test_only_days_asked_for_are_judged() -> None:
    days = [[rollout(10)]] * 8 + [[rollout(90)]] + [[rollout(10)]] * 3
    asked = Period(T0_NS + 9 * DAY_NS, T0_NS + 10 * DAY_NS)
    result = watch_days(days, asked)
    assert (result.judged, result.anomalies) == ((date(2026, 6, 10),), ())


ROWS = st.lists(
    st.builds(
        lambda hours, rate, bucket, team, tokens: rollout(hours, rate, tokens, bucket=bucket, team=team),
        st.integers(0, 50),
        st.integers(0, 999),
        st.sampled_from(["rollout", "idle"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 3000),
    ),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=30)
@given(st.lists(ROWS, min_size=8, max_size=10))
def test_whatever_stands_out_differs_from_the_median(days: list[list[dict[str, Any]]]) -> None:
    for anomaly in watch_days(days).anomalies:
        value, median = anomaly.value.value, anomaly.median.value
        assert isinstance(value, int)
        assert isinstance(median, int)
        assert anomaly.change_nano == value - median != 0
        assert anomaly.metric in {metric.name for metric in METRICS}


def test_a_ledger_s_odd_day_is_found(weeks: Path) -> None:
    result = watch(bill(weeks, Period(T0_NS, T0_NS + 20 * DAY_NS), BOOK), Period(T0_NS, T0_NS + 20 * DAY_NS))
    assert (len(result.judged), len(result.not_judged)) == (13, 7)
    assert {(anomaly.day, anomaly.metric) for anomaly in result.anomalies} == {
        (date(2026, 6, 15), "idle"),
        (date(2026, 6, 15), "cost per million useful tokens"),
    }
    assert "3.5 robust deviations" in RULE
    assert signed_usd(-1_200_000_000) == "-$1.20"


def test_what_is_next_to_nothing_is_not_written_out() -> None:
    assert [roughly(nano) for nano in (2, -99, 0, 100)] == [
        "less than a cent",
        "less than a cent",
        "$0.00",
        "+$0.000000100",
    ]
