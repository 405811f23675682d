"""Alerts and their messages: what holds by the last round, the newest messages, and those that did not arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import books, escape, frame
from dashboard import format as words
from rose.pricing.alerts import log
from rose.pricing.alerts.log import Entry

#: So many messages are listed; `rose alerts list` has all.
SHOWN_MAX = 50
#: A message that was given up needs nobody any more after so long.
_FAILED = timedelta(days=7)


def show(ledger: Path) -> None:
    """What holds, and the newest messages."""
    st.header("What do alerts say, and did they arrive?")
    messages = books.messages(ledger)
    if messages.value is None:
        st.error(escape.prose(messages.error or words.NOT_ENOUGH_DATA))
        return
    if not messages.value:
        st.info("No message was queued yet. `rose alerts run` looks at the rules of a file, and sends what is due.")
        return
    holds = holding(messages.value)
    if holds.is_empty():
        st.markdown("No alert holds, by the last message on each.")
    else:
        frame.table(holds, "events of the writer `alerts`: alerts whose last message says that they hold.")
    left_out = len(messages.value) - SHOWN_MAX
    more = f" {left_out:,} older ones: `rose alerts list`." if left_out > 0 else ""
    frame.table(newest(messages.value), f"events of the writer `alerts`, the newest messages first.{more}")


def holding(entries: Sequence[Entry]) -> pl.DataFrame:
    """The alerts that hold, by the last message on each, the newest first, with the channels that it went to."""
    channels: dict[str, list[str]] = defaultdict(list)
    last: dict[str, tuple[int, str]] = {}
    for (channel, key), sent in log.last_sent(list(entries)).items():
        if sent.status == "firing":
            channels[key].append(channel)
            last[key] = max(last.get(key, (0, "")), (sent.at_us, sent.title))
    rows = [
        {"last message": _at(at_us), "alert": title, "channels": ", ".join(channels[key])}
        for key, (at_us, title) in sorted(last.items(), key=lambda item: -item[1][0])
    ]
    return pl.DataFrame(rows, schema={"last message": pl.Datetime("us"), "alert": pl.String, "channels": pl.String})


def newest(entries: Sequence[Entry]) -> pl.DataFrame:
    """The newest messages, each with its outcome."""
    rows = [
        {
            "queued": _at(entry.message.at_us),
            "channel": entry.message.channel,
            "kind": entry.message.kind,
            "title": entry.message.title,
            "provenance": entry.message.provenance,
            "outcome": entry.state,
            "tries": entry.tries,
            "error": entry.error,
        }
        for entry in reversed(entries[-SHOWN_MAX:])
    ]
    return pl.DataFrame(rows, schema_overrides={"error": pl.String})


def failed(entries: Sequence[Entry], now: datetime) -> Mapping[str, list[Entry]]:
    """By channel, the messages that were given up in the last week, and those that wait after a try that failed."""
    since_us = int((now - _FAILED).timestamp() * 1e6)
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        given_up = entry.state == "given up" and (entry.last_us or 0) >= since_us
        if given_up or (entry.state == "waiting" and entry.tries):
            found[entry.message.channel].append(entry)
    return found


def _at(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC).replace(tzinfo=None)
