"""What is to be sent now, of what holds and what was sent before; pure, so that a restart decides the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from rose.pricing.alerts.config import WEEKDAYS, ReportConfig
from rose.pricing.alerts.rules import Alert, Outcome

Status = Literal["firing", "resolved"]
_US_PER_S = 1_000_000
#: Of a month and a few days, so that every schedule has an instant in it.
_DAYS_BACK = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """The last message on an alert that was queued for a channel; `title` is that of the alert."""

    status: Status
    level: int
    at_us: int
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A message that is to be queued: an alert that holds, or the key of one that is over."""

    channel: str
    status: Status
    key: str
    rule: str
    title: str
    level: int = 0
    alert: Alert | None = None


def due(outcomes: Iterable[Outcome], sent: Mapping[tuple[str, str], Sent], now_us: int) -> list[Due]:
    """Messages that are due at a time, in the order of the rules; `sent` is by channel and key.

    An alert is sent when it begins to hold, when its level rises, and again after the rule's `repeat_after`; its end is
    sent once, where the rule could look and its beginning was sent.
    """
    messages = []
    for outcome in outcomes:
        rule, holding = outcome.rule, {alert.key: alert for alert in outcome.alerts}
        for channel in rule.channels:
            for key, alert in holding.items():
                if _is_news(alert, sent.get((channel, key)), rule.repeat_after, now_us):
                    messages.append(
                        Due(
                            channel=channel,
                            status="firing",
                            key=key,
                            rule=rule.name,
                            title=alert.title,
                            level=alert.level,
                            alert=alert,
                        )
                    )
            for key in sorted(outcome.looked_at - holding.keys()):
                last = sent.get((channel, key))
                if last is not None and last.status == "firing":
                    messages.append(Due(channel=channel, status="resolved", key=key, rule=rule.name, title=last.title))
    return messages


def _is_news(alert: Alert, last: Sent | None, repeat_after_s: int | None, now_us: int) -> bool:
    if last is None or last.status == "resolved" or alert.level > last.level:
        return True
    return repeat_after_s is not None and now_us - last.at_us >= repeat_after_s * _US_PER_S


def last_instant_us(report: ReportConfig, now_us: int) -> int:
    """The last time at or before `now_us` that a report was scheduled for, UTC microseconds.

    A time of day that the clocks skip is that much later; of one that comes twice it is the first.
    """
    zone, at = ZoneInfo(report.time_zone), time.fromisoformat(report.at)
    today = datetime.fromtimestamp(now_us / _US_PER_S, UTC).astimezone(zone).date()
    for back in range(_DAYS_BACK):
        day = today - timedelta(days=back)
        moment = datetime.combine(day, at, zone).astimezone(UTC)
        instant_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        if _is_day(report, day) and instant_us <= now_us:
            return instant_us
    raise AssertionError("every schedule has a day in a month")


def _is_day(report: ReportConfig, day: date) -> bool:
    if report.every == "week":
        return WEEKDAYS[day.weekday()] == report.on
    return report.every == "day" or day.day == report.on
