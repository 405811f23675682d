from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rose.events import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.alerts import log
from rose.pricing.alerts.log import DELIVERED, FAILED, QUEUED, Entry
from rose.pricing.alerts.message import Message


def test_a_message_stands_as_its_last_try_ended(fleet: Path, message: Message) -> None:
    assert log.load(fleet) == []
    other = replace(message, message_id="0" * 32, kind="resolved", at_us=message.at_us + 1)
    with log.exclusive(fleet) as folder:
        log.queue(folder, [message, other])
        assert log.load(folder) == [Entry(message=message), Entry(message=other)]
        failed = log.tried(folder, message, FAILED, tries=1, error="x" * 999)
        assert (failed.state, len(failed.error or "")) == ("waiting", 500)
        assert log.load(folder) == [failed, Entry(message=other)]
        done = log.tried(folder, message, DELIVERED, tries=2)
        assert log.load(folder) == [done, Entry(message=other)]
    assert log.last_sent(log.load(fleet))["c", message.key].status == "resolved"


def test_an_event_that_no_command_wrote_is_passed_over(fleet: Path, message: Message) -> None:
    with log.exclusive(fleet) as folder:
        log.queue(folder, [message])
    forged = {**message.record(), "title": 7, "id": "1"}
    with LedgerWriter.open(fleet, log.WRITER, "ledger") as writer:
        for action, detail in (
            (QUEUED, {"id": "2"}),
            (QUEUED, forged),
            (QUEUED, [1]),
            (FAILED, {"id": message.message_id}),
            (DELIVERED, {"id": "nobody's", "tries": 1, "at_us": 1}),
        ):
            writer.record(Ledger(action=action, detail_json=json.dumps(detail)))
    assert log.load(fleet) == [Entry(message=message)]
