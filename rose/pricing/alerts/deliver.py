"""Sending what waits: each try is on record, and a message that nobody takes is given up after the last one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rose.clock import utc_us
from rose.pricing.alerts import log, mail, webhook
from rose.pricing.alerts.config import AlertsError, Channel, EmailChannel
from rose.pricing.alerts.log import DELIVERED, FAILED, GIVEN_UP, Entry
from rose.pricing.alerts.message import Message
from rose.pricing.alerts.webhook import DeliveryError

#: After each try that failed, how long to wait for the next; after the last of them a message is given up.
BACKOFF_S = (1, 10, 60, 600, 3600, 6 * 3600)
TRIES_MAX = len(BACKOFF_S) + 1
#: A run waits for the next try if it is due within so long; else a later run makes it.
PATIENCE_S = 10.0


def deliver(
    root: Path, entries: Iterable[Entry], channels: Mapping[str, Channel], *, patience_s: float = PATIENCE_S
) -> list[Entry]:
    """Try each message that waits and whose time has come; returns how those stand that were tried.

    The caller holds the log's `exclusive`. Raises LedgerError where a try cannot be put on record.
    """
    done: dict[str, Entry] = {}
    # By channel, the message that it did not take: its others wait for a later round, so that no round lasts for ever.
    blocked: dict[str, str] = {}
    waiting = [entry for entry in entries if entry.state == "waiting"]
    deadline_us = utc_us() + int(patience_s * 1e6)
    while waiting:
        waiting.sort(key=due_us)
        entry = waiting.pop(0)
        channel, message_id = entry.message.channel, entry.message.message_id
        if blocked.get(channel, message_id) != message_id:
            continue
        if due_us(entry) > deadline_us:
            break
        time.sleep(max(0, due_us(entry) - utc_us()) / 1e6)
        tried = _try(root, entry, channels)
        done[message_id] = tried
        if tried.state == "waiting":
            waiting.append(tried)
            blocked[channel] = message_id
        else:
            blocked.pop(channel, None)
    return list(done.values())


def due_us(entry: Entry) -> int:
    """When the next try is due, UTC microseconds; 0 where none was made yet."""
    if entry.last_us is None:
        return 0
    return entry.last_us + BACKOFF_S[min(entry.tries, len(BACKOFF_S)) - 1] * 1_000_000


def send(channel: Channel, message: Message) -> str | None:
    """One try; returns for which addresses it was refused, if it was taken for others.

    Raises DeliveryError, and AlertsError where the channel's secret cannot be had.
    """
    if isinstance(channel, EmailChannel):
        return mail.send(channel, message)
    webhook.send(channel, message)
    return None


def _try(root: Path, entry: Entry, channels: Mapping[str, Channel]) -> Entry:
    message, tries = entry.message, entry.tries + 1
    channel = channels.get(message.channel)
    if channel is None:
        error = f"no channel is named {message.channel!r} any more"
        return log.tried(root, message, GIVEN_UP, tries=tries, error=error)
    try:
        refused = send(channel, message)
    except (DeliveryError, AlertsError) as failure:
        final = tries >= TRIES_MAX or (isinstance(failure, DeliveryError) and failure.final)
        return log.tried(root, message, GIVEN_UP if final else FAILED, tries=tries, error=str(failure))
    return log.tried(root, message, DELIVERED, tries=tries, error=refused)
