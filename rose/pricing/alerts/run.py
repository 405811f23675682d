"""One round of alerts: look at the facts, queue what is due, send what waits; schedulers and commands call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.clock import utc_us
from rose.errors import UserError
from rose.pricing.alerts import config as configuration
from rose.pricing.alerts import deliver, gather, log, reports
from rose.pricing.alerts.config import AlertsConfig
from rose.pricing.alerts.due import Due, due, last_instant_us
from rose.pricing.alerts.log import Entry
from rose.pricing.alerts.message import Message, new_id
from rose.pricing.alerts.rules import Outcome, evaluate
from rose.pricing.money import PricingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one round did: what the rules found, what was queued, how the messages stand that were tried."""

    outcomes: tuple[Outcome, ...]
    queued: tuple[Message, ...]
    tried: tuple[Entry, ...]
    #: Reports that could not be made, each with why; the next round tries them again.
    not_made: Mapping[str, str]

    @property
    def result(self) -> dict[str, object]:
        """For the record of a job."""
        states = [entry.state for entry in self.tried]
        unknown = {outcome.rule.name: outcome.unknown for outcome in self.outcomes if outcome.unknown is not None}
        return {
            "holding": sum(len(outcome.alerts) for outcome in self.outcomes),
            "queued": len(self.queued),
            "delivered": states.count("delivered"),
            "waiting": states.count("waiting"),
            "given_up": states.count("given up"),
            "unknown": unknown,
            "reports_not_made": dict(self.not_made),
        }


def check(root: Path, config: AlertsConfig, now_us: int | None = None) -> tuple[Outcome, ...]:
    """What the rules find now; nothing is recorded or sent. Raises LedgerError for a folder that is no ledger."""
    now_us = utc_us() if now_us is None else now_us
    facts = gather.facts(root, config, now_us)
    return tuple(evaluate(rule, facts, now_us) for rule in config.rule)


def run(root: Path, config: AlertsConfig, now_us: int | None = None) -> Round:
    """A whole round; another one waits for its end. Raises LedgerError where it cannot be put on record."""
    with log.exclusive(root) as folder:
        now_us = utc_us() if now_us is None else now_us
        outcomes, entries = check(folder, config, now_us), log.load(folder)
        queued = [_message(one, config, now_us) for one in due(outcomes, log.last_sent(entries), now_us)]
        made, not_made = _reports(folder, config, entries, now_us)
        queued += made
        log.queue(folder, queued)
        entries += [Entry(message=message) for message in queued]
        tried = deliver.deliver(folder, entries, {channel.name: channel for channel in config.channel})
    return Round(outcomes=outcomes, queued=tuple(queued), tried=tuple(tried), not_made=not_made)


def send_test(root: Path, config: AlertsConfig, channel: str) -> Entry:
    """Send a test message to a channel, tried at once and once only. Raises PricingError for no such channel."""
    channels = {one.name: one for one in config.channel}
    if channel not in channels:
        raise PricingError(f"no channel is named {channel!r}; the file has {', '.join(channels)}")
    message = Message(
        message_id=new_id(),
        channel=channel,
        kind="test",
        key="test",
        title=f"a test of channel {channel}",
        sentences=("If you can read this, messages of this channel arrive.",),
        at_us=utc_us(),
        provenance=config.provenance,
    )
    with log.exclusive(root) as folder:
        log.queue(folder, [message])
        # Whoever tests looks at the outcome, so a test that fails is over.
        last_try = Entry(message=message, tries=deliver.TRIES_MAX - 1)
        (tried,) = deliver.deliver(folder, [last_try], channels)
    return tried


def job(root: Path, *, file: Path) -> Mapping[str, object]:
    """A round by the file of alerts, as a background job. Raises AlertsError, PricingError where a report failed."""
    done = run(root, configuration.load(file))
    if done.not_made:
        why = "; ".join(f"{name}: {text}" for name, text in done.not_made.items())
        raise PricingError(f"{len(done.not_made)} reports could not be made: {why}")
    return done.result


def _message(one: Due, config: AlertsConfig, now_us: int) -> Message:
    text = "This holds no more." if one.alert is None else one.alert.text
    return Message(
        message_id=new_id(),
        channel=one.channel,
        kind=one.status,
        key=one.key,
        title=one.title,
        sentences=(text, f"Rule: {one.rule}."),
        at_us=now_us,
        provenance=config.provenance,
        level=one.level,
    )


def _reports(
    root: Path, config: AlertsConfig, entries: list[Entry], now_us: int
) -> tuple[list[Message], dict[str, str]]:
    """The newest report of each schedule that was not queued yet. One that was missed before it is not made up for."""
    known = {(entry.message.channel, entry.message.key) for entry in entries}
    made: list[Message] = []
    not_made: dict[str, str] = {}
    for report in config.report:
        instant_us = last_instant_us(report, now_us)
        key = reports.key(report, instant_us)
        if all((channel, key) in known for channel in report.channels):
            continue
        try:
            messages = reports.build(root, report, config, instant_us, now_us)
        except UserError as error:
            not_made[report.name] = str(error)
            continue
        made += [message for message in messages if (message.channel, key) not in known]
    return made, not_made


def to_json(outcomes: tuple[Outcome, ...]) -> list[dict[str, Any]]:
    """What the rules found, as plain values."""
    return [
        {
            "rule": outcome.rule.name,
            "kind": outcome.rule.kind,
            "unknown": outcome.unknown,
            "alerts": [
                {"key": alert.key, "title": alert.title, "text": alert.text, "level": alert.level}
                for alert in outcome.alerts
            ],
        }
        for outcome in outcomes
    ]
