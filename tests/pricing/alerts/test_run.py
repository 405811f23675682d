from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rose.clock import utc_us
from rose.ledger.verify import verify
from rose.pricing.alerts import deliver, log, run
from rose.pricing.alerts.config import AlertsConfig
from rose.pricing.alerts.log import Entry
from rose.pricing.alerts.message import Message
from rose.pricing.closing import period
from rose.pricing.money import PricingError
from rose.pricing.watch import budget
from tests.pricing.alerts.servers import Posted, Web, mails
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, T0_NS

#: An hour into 2026-06-17, whose two days before end with the odd one.
NOW_US = (T0_NS + 16 * DAY_NS) // 1000 + 3_600_000_000
DAY_US = DAY_NS // 1000


@pytest.fixture
def config(weeks: Path, webhook_channel: dict[str, Any]) -> Any:
    """Makes the configuration of some rules, with one webhook channel `c`."""
    book = weeks.parent / "book.toml"
    book.write_text(BOOK_TOML)

    def made(*rules: dict[str, Any], **more: Any) -> AlertsConfig:
        named = [{"name": rule["kind"], "channels": ["c"]} | rule for rule in rules]
        return AlertsConfig.model_validate(
            {"channel": [webhook_channel], "rule": named, "price_book": str(book)} | more
        )

    return made


def subjects(hook: Web) -> list[str]:
    return [json.loads(posted.body)["subject"] for posted in hook.got]


def test_a_budget_alerts_once_rises_and_is_over(weeks: Path, config: Any, hook: Web) -> None:
    asked = config({"kind": "budget", "forecast": False})
    assert run.run(weeks, asked, NOW_US).result["holding"] == 0
    month = period.of_month("2026-06")
    # 16 days at $86.40.
    budget.set_budget(weeks, "chat", "1500", month)
    budget.set_budget(weeks, "research", "500", month)
    done = run.run(weeks, asked, NOW_US)
    assert done.result["delivered"] == 1, done
    assert subjects(hook) == ["ROSE: chat has spent 80% of its budget for 2026-06"]
    assert run.run(weeks, asked, NOW_US + DAY_US - 1).queued == ()
    budget.set_budget(weeks, "chat", "1000", month)
    run.run(weeks, asked, NOW_US)
    budget.set_budget(weeks, "chat", "9000", month)
    run.run(weeks, asked, NOW_US)
    assert subjects(hook)[1:] == [
        "ROSE: chat has spent 100% of its budget for 2026-06",
        "ROSE: resolved: chat has spent 100% of its budget for 2026-06",
    ]
    assert run.run(weeks, asked, NOW_US).queued == ()
    assert verify(weeks).ok


@pytest.mark.long
def test_a_day_that_stands_out_alerts_once(weeks: Path, config: Any, hook: Web) -> None:
    asked = config({"kind": "anomaly"})
    run.run(weeks, asked, NOW_US)
    assert subjects(hook) == [
        "ROSE: idle of 2026-06-15 stands out",
        "ROSE: cost per million useful tokens of 2026-06-15 stands out",
    ]
    assert run.run(weeks, asked, NOW_US).queued == ()


def test_what_cannot_be_priced_is_unknown_and_not_over(weeks: Path, config: Any, hook: Web) -> None:
    asked = config({"kind": "anomaly"})
    run.run(weeks, asked, NOW_US)
    unpriced = asked.model_copy(update={"price_book": str(weeks.parent / "nowhere.toml")})
    done = run.run(weeks, unpriced, NOW_US)
    assert done.queued == ()
    assert "cannot read price book" in str(done.result["unknown"])
    assert len(hook.got) == 2


def test_a_ledger_that_was_verified_alerts_no_more(weeks: Path, config: Any, hook: Web) -> None:
    asked = config({"kind": "unverified"}, {"kind": "slo", "target": 0.9}, {"kind": "meter"})
    now_us = utc_us()
    done = run.run(weeks, asked, now_us)
    assert subjects(hook) == ["ROSE: the ledger was never verified"]
    assert list(done.result["unknown"]) == ["slo"]  # type: ignore[call-overload]
    assert verify(weeks).ok
    run.run(weeks, asked, utc_us())
    assert subjects(hook)[1:] == ["ROSE: resolved: the ledger was never verified"]


@pytest.mark.long
def test_a_weekly_report_is_sent_once(weeks: Path, config: Any, hook: Web) -> None:
    report = {"name": "weekly", "channels": ["c"], "every": "week", "on": "monday", "at": "00:30"}
    asked = config(report=[report])
    # Monday 2026-06-15 is the last one.
    run.run(weeks, asked, NOW_US)
    assert run.run(weeks, asked, NOW_US + DAY_US).queued == ()
    (posted,) = hook.got
    data = json.loads(posted.body)
    assert data["subject"] == "ROSE: weekly: 2026-06-08 through 2026-06-14, UTC"
    text = " ".join(data["sentences"])
    for said in (
        "The fleet cost $604.80 (amortized; USD, live)",
        "Compared with 2026-06-01 through 2026-06-07, UTC: It cost the same.",
        "What borrowing saved is not known",
        "No serving request was recorded",
        "Ledger verified until 20",
    ):
        assert said in text
    assert [section["columns"][:2] for section in data["sections"]] == [["team", "before"]]
    run.run(weeks, asked, NOW_US + 7 * DAY_US)
    assert subjects(hook)[1] == "ROSE: weekly: 2026-06-15 through 2026-06-21, UTC"
    effects = json.loads(hook.got[1].body)["sections"][1]
    assert effects["title"] == "What drove the change"


@pytest.mark.long
def test_a_report_comes_by_mail_with_its_tables(weeks: Path, config: Any) -> None:
    month = period.of_month("2026-06")
    budget.set_budget(weeks, "<b>chat", "9000", month)
    with mails() as server:
        address = {"host": "127.0.0.1", "port": server.port, "security": "none", "from": "r@x.org", "to": ["a@x.org"]}
        report = {"name": "daily", "channels": ["m"], "every": "day", "at": "00:30", "by": "bucket"}
        asked = config(report=[report], channel=[{"name": "m", "kind": "email"} | address])
        done = run.run(weeks, asked, NOW_US)
    assert done.result["delivered"] == 1, done
    (mail,) = server.got
    assert mail["Subject"] == "ROSE: daily: 2026-06-16, UTC"
    html, plain = mail.get_body(("html",)), mail.get_body(("plain",))
    assert html is not None
    assert plain is not None
    assert "<td>rollout</td>" in html.get_content()
    assert "&lt;b&gt;chat has spent $0.00" in html.get_content()
    assert "amortized; USD, live" in plain.get_content()


@pytest.mark.long
def test_a_report_of_a_quiet_week_says_so(weeks: Path, config: Any, hook: Web) -> None:
    report = {"name": "weekly", "channels": ["c"], "every": "week", "on": "monday", "at": "00:30"}
    done = run.run(weeks, config(report=[report]), NOW_US + 70 * DAY_US)
    assert (done.not_made, len(hook.got)) == ({}, 1)
    assert "Nothing was charged: no device time was provisioned" in " ".join(json.loads(hook.got[0].body)["sentences"])
    # The first week of all has none before it.
    first = run.run(weeks, config(report=[report]), NOW_US - 8 * DAY_US)
    assert "It cannot be compared: " in " ".join(first.queued[0].sentences)


@pytest.mark.long
def test_a_report_that_cannot_be_made_is_said_and_tried_again(weeks: Path, config: Any, hook: Web) -> None:
    report = {"name": "daily", "channels": ["c"], "every": "day", "at": "00:30"}
    asked = config(report=[report], price_book=str(weeks.parent / "nowhere.toml"))
    done = run.run(weeks, asked, NOW_US)
    assert "cannot read price book" in done.not_made["daily"]
    run.run(weeks, config(report=[report]), NOW_US)
    assert len(hook.got) == 1


def test_each_failed_try_is_on_record_and_the_last_one_gives_up(
    weeks: Path, config: Any, hook: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "BACKOFF_S", (0, 0))
    monkeypatch.setattr(deliver, "TRIES_MAX", 3)
    hook.codes = [503]
    for _ in range(3):
        # On a host that is slow, in a later round than the first.
        run.run(weeks, config({"kind": "unverified"}), utc_us())
    (entry,) = log.load(weeks)
    assert (entry.state, entry.tries, len(hook.got)) == ("given up", 3, 3)
    assert "answered 503" in (entry.error or "")
    assert len({posted.headers["Webhook-Id"] for posted in hook.got}) == 1
    assert len({posted.body for posted in hook.got}) == 1
    # It is not sent again before it is repeated.
    assert run.run(weeks, config({"kind": "unverified"}), utc_us()).tried == ()


def test_a_message_waits_for_a_server_that_comes_back(weeks: Path, config: Any, hook: Web) -> None:
    hook.codes = [500, 200]
    asked = config({"kind": "unverified"})
    with log.exclusive(weeks) as folder:
        queued = [replace(_message(), message_id=str(number) * 32) for number in (1, 2)]
        log.queue(folder, queued)
        channels = {channel.name: channel for channel in asked.channel}
        (first,) = deliver.deliver(folder, log.load(folder), channels, patience_s=0)
    # The second was not tried: its channel had just failed.
    assert (first.message.message_id[0], first.state, len(hook.got)) == ("1", "waiting", 1)
    assert deliver.due_us(first) == (first.last_us or 0) + 1_000_000
    with log.exclusive(weeks) as folder:
        done = deliver.deliver(folder, log.load(folder), channels, patience_s=5)
    assert [(entry.message.message_id[0], entry.state) for entry in done] == [("2", "delivered"), ("1", "delivered")]


def test_a_message_to_a_channel_that_is_no_more_is_given_up(weeks: Path) -> None:
    with log.exclusive(weeks) as folder:
        log.queue(folder, [_message()])
        (entry,) = deliver.deliver(folder, log.load(folder), {})
    assert (entry.state, entry.error) == ("given up", "no channel is named 'c' any more")


def _message() -> Message:
    return Message(
        message_id="0" * 32,
        channel="c",
        kind="firing",
        key="k",
        title="t",
        sentences=("s",),
        at_us=utc_us(),
        provenance="live",
    )


def test_a_test_message_is_tried_once(weeks: Path, config: Any, hook: Web) -> None:
    assert run.send_test(weeks, config(), "c").state == "delivered"
    hook.codes = [500]
    assert run.send_test(weeks, config(), "c").state == "given up"
    assert subjects(hook) == ["ROSE: test: a test of channel c"] * 2
    assert [entry.message.kind for entry in log.load(weeks)] == ["test", "test"]
    with pytest.raises(PricingError, match="no channel is named 'd'; the file has c"):
        run.send_test(weeks, config(), "d")


@pytest.mark.long
def test_who_was_killed_while_sending_sends_the_same_again_and_no_more(
    weeks: Path, hook: Web, secret_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "alerts.toml"
    file.write_text(
        f'[[channel]]\nname = "c"\nkind = "webhook"\nurl = "{hook.url}"\nsecret_file = "{secret_file}"\n'
        '[[rule]]\nname = "v"\nkind = "unverified"\nchannels = ["c"]\n'
    )
    command = [sys.executable, "-m", "rose.cli", "alerts", "run", "--alerts", str(file), "--ledger", str(weeks)]

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    victim = started()

    def kill(posted: Posted) -> None:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()

    # It was posted whole, and its sender never hears that.
    hook.before = kill
    output = victim.communicate(timeout=120)[0]
    assert victim.returncode == -signal.SIGKILL, output
    hook.before = lambda posted: None
    (waiting,) = log.load(weeks)
    assert waiting == Entry(message=waiting.message)
    for _ in range(2):
        again = started()
        output = again.communicate(timeout=120)[0]
        assert again.returncode == 0, output
    first, second = hook.got
    assert first.headers["Webhook-Id"] == second.headers["Webhook-Id"] == waiting.message.message_id
    assert first.body == second.body
    assert [(entry.state, entry.tries) for entry in log.load(weeks)] == [("delivered", 1)]
    assert verify(weeks).ok
