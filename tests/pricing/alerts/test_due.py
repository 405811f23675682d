from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.alerts.config import ReportConfig, UnverifiedRule
from rose.pricing.alerts.due import Due, Sent, due, last_instant_us
from rose.pricing.alerts.rules import Alert, Outcome

HOUR_US = 3_600_000_000
NOW_US = 1_780_000_000_000_000


def rule(repeat_after: str = "24h", channels: tuple[str, ...] = ("c",)) -> UnverifiedRule:
    return UnverifiedRule.model_validate(
        {"kind": "unverified", "name": "r", "channels": list(channels), "repeat_after": repeat_after}
    )


def outcome(*keys: str, level: int = 0, looked_at: frozenset[str] = frozenset({"a", "b"}), by: Any = None) -> Outcome:
    alerts = tuple(Alert(key=key, rule="r", title=f"{key} is up", text="", level=level) for key in keys)
    return Outcome(rule=by or rule(), alerts=alerts, looked_at=looked_at | set(keys))


def kept(messages: list[Due], at_us: int) -> dict[tuple[str, str], Sent]:
    return {
        (one.channel, one.key): Sent(status=one.status, level=one.level, at_us=at_us, title=one.title)
        for one in messages
    }


def statuses(messages: list[Due]) -> list[tuple[str, str]]:
    return [(one.key, one.status) for one in messages]


def test_an_alert_is_sent_once_and_again_after_a_while_and_when_it_is_over() -> None:
    first = due([outcome("a")], {}, NOW_US)
    assert statuses(first) == [("a", "firing")]
    sent = kept(first, NOW_US)
    assert due([outcome("a")], sent, NOW_US + 24 * HOUR_US - 1) == []
    assert statuses(due([outcome("a")], sent, NOW_US + 24 * HOUR_US)) == [("a", "firing")]
    over = due([outcome()], sent, NOW_US + HOUR_US)
    assert [(one.key, one.status, one.title) for one in over] == [("a", "resolved", "a is up")]
    assert due([outcome()], kept(over, NOW_US), NOW_US + 90 * HOUR_US) == []
    assert statuses(due([outcome("a")], kept(over, NOW_US), NOW_US)) == [("a", "firing")]


def test_one_that_never_repeats_does_not() -> None:
    never = rule("never")
    sent = kept(due([outcome("a", by=never)], {}, 0), 0)
    assert due([outcome("a", by=never)], sent, NOW_US) == []


def test_a_higher_level_is_news_and_a_lower_one_is_not() -> None:
    sent = kept(due([outcome("a", level=5)], {}, NOW_US), NOW_US)
    assert statuses(due([outcome("a", level=6)], sent, NOW_US)) == [("a", "firing")]
    assert due([outcome("a", level=4)], sent, NOW_US) == []


def test_what_was_not_looked_at_is_not_over() -> None:
    sent = kept(due([outcome("a")], {}, NOW_US), NOW_US)
    assert due([Outcome(rule=rule(), unknown="no prices")], sent, NOW_US) == []
    assert due([outcome(looked_at=frozenset({"b"}))], sent, NOW_US) == []


def test_each_channel_has_its_own_history() -> None:
    both = rule(channels=("c", "d"))
    sent = kept(due([outcome("a")], {}, NOW_US), NOW_US)
    assert [one.channel for one in due([outcome("a", by=both)], sent, NOW_US)] == ["d"]


STEPS = st.lists(st.tuples(st.sets(st.sampled_from("ab")), st.booleans(), st.integers(1, 30)), max_size=12)


@settings(deadline=None)
@given(STEPS)
def test_who_reads_the_messages_knows_what_holds(steps: list[tuple[set[str], bool, int]]) -> None:
    """After any course of things, the last message on each alert says whether it held when it was last looked at."""
    sent: dict[tuple[str, str], Sent] = {}
    known: dict[str, bool] = {}
    now_us = NOW_US
    for holding, looked, hours in steps:
        now_us += hours * HOUR_US
        found = outcome(*sorted(holding)) if looked else Outcome(rule=rule(), unknown="x")
        messages = due([found], sent, now_us)
        # Nothing is said twice at one time, and nothing of what cannot be looked at.
        assert len({one.key for one in messages}) == len(messages)
        assert looked or not messages
        sent |= kept(messages, now_us)
        assert due([found], sent, now_us) == []
        if looked:
            known = {key: key in holding for key in "ab"}
        for key, holds in known.items():
            last = sent.get(("c", key))
            assert holds == (last is not None and last.status == "firing")


def report(**fields: Any) -> ReportConfig:
    return ReportConfig.model_validate({"name": "r", "channels": ["c"], "at": "08:00"} | fields)


def utc(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1e6, UTC):%Y-%m-%dT%H:%M}"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("fields", "now", "last"),
    [
        ({"every": "day"}, "2026-05-28T08:00", "2026-05-28T08:00"),
        ({"every": "day"}, "2026-05-28T07:59", "2026-05-27T08:00"),
        ({"every": "day", "time_zone": "Europe/Berlin"}, "2026-05-28T06:00", "2026-05-28T06:00"),
        ({"every": "day", "time_zone": "America/Los_Angeles"}, "2026-05-28T14:00", "2026-05-27T15:00"),
        ({"every": "week", "on": "monday"}, "2026-05-28T09:00", "2026-05-25T08:00"),
        ({"every": "week", "on": "thursday"}, "2026-05-28T07:00", "2026-05-21T08:00"),
        ({"every": "month", "on": 1}, "2026-05-28T09:00", "2026-05-01T08:00"),
        ({"every": "month", "on": 28}, "2026-05-28T07:00", "2026-04-28T08:00"),
        # The clocks skip 02:30 on 2026-03-29, and have it twice on 2026-10-25.
        ({"every": "day", "at": "02:30", "time_zone": "Europe/Berlin"}, "2026-03-29T09:00", "2026-03-29T01:30"),
        ({"every": "day", "at": "02:30", "time_zone": "Europe/Berlin"}, "2026-10-25T09:00", "2026-10-25T00:30"),
    ],
)
def test_the_last_time_that_a_report_was_due(fields: dict[str, Any], now: str, last: str) -> None:
    assert utc(last_instant_us(report(**fields), at(now))) == last


@given(
    st.integers(1_600_000_000, 2_000_000_000),
    st.integers(0, 86_400 * 40),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Auckland"]),
    st.sampled_from([{"every": "day"}, {"every": "week", "on": "sunday"}, {"every": "month", "on": 28}]),
)
def test_a_schedule_goes_forward_and_never_ahead(now_s: int, more_s: int, zone: str, fields: dict[str, Any]) -> None:
    asked = report(time_zone=zone, at="02:30", **fields)
    first, later = (last_instant_us(asked, us * 1_000_000) for us in (now_s, now_s + more_s))
    assert first <= now_s * 1_000_000
    assert first <= later <= (now_s + more_s) * 1_000_000
    assert last_instant_us(asked, first) == first
