"""Rules, and messages that Apprise really delivers: to an HTTP server and to a mail server."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing import alerts, period
from rose.pricing.alerts import AlertsConfig, AlertsError
from rose.pricing.watch import budget
from tests.pricing import any_event
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, NEXT_DAY_US, T0_NS, S, begun, us, weeks_events, write

#: An hour into 2026-06-17.
NOW_US = (T0_NS + 16 * DAY_NS) // 1000 + 3_600_000_000
SECRET = "s3cret-path-of-the-hook"


@dataclass
class Hook:
    url: str = ""
    titles: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    code: int = 200


@contextmanager
def serving() -> Iterator[Hook]:
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            hook.titles.append(posted["title"])
            hook.bodies.append(posted["message"])
            self.send_response(hook.code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.url = f"json://127.0.0.1:{server.server_port}/{SECRET}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def request(number: int, at_s: int, ttft_ms: int) -> events.Request:
    times = {"ttft_ns": ttft_ms * 10**6, "e2e_ns": S, "ttft_budget_ns": 500 * 10**6, "tpot_budget_ns": 50 * 10**6}
    return any_event.request(request_id=f"q{number}", device_id="s0", at_us=us(at_s), **times)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with serving() as hook:
        yield hook


@pytest.fixture
def config(tmp_path: Path, hook: Hook) -> Any:
    (tmp_path / "book.toml").write_text(BOOK_TOML)
    urls = tmp_path / "urls"
    urls.write_text(f"# destinations\nhook = {hook.url}\n")
    urls.chmod(0o600)

    def make(*rules: dict[str, Any]) -> AlertsConfig:
        named = [{"name": rule["kind"], "to": ["hook"]} | rule for rule in rules]
        book = str(tmp_path / "book.toml")
        return AlertsConfig.model_validate({"rule": named, "price_book": book, "urls_file": str(urls)})

    return make


def test_a_budget_is_sent_once_and_when_it_rises_and_ends(fleet: Path, config: Any, hook: Hook) -> None:
    asked, month = config({"kind": "budget", "forecast": False}), period.of_month("2026-06")

    def sent(usd: str, checked: AlertsConfig = asked) -> int:
        """Messages of a round with a budget of chat, which spent $2.77."""
        budget.set_budget(Ledger(fleet), "chat", usd, month)
        return alerts.check(Ledger(fleet), checked, NEXT_DAY_US).sent

    budget.set_budget(Ledger(fleet), "research", "50", month)
    assert sent("3") == 1
    assert hook.titles == ["ROSE: chat has spent 80% of its budget for 2026-06"]
    assert "of $3.00 in 2026-06 (amortized" in hook.bodies[0]
    # What is not known ends no alert.
    done = alerts.check(Ledger(fleet), asked.model_copy(update={"price_book": "nowhere.toml"}), NEXT_DAY_US)
    assert "nowhere.toml" in str(done.outcomes[0].unknown)
    assert (done.sent, len(done.entries)) == (0, 1)
    assert sent("3") == 0
    assert sent("2") == 1
    assert hook.titles[1:] == ["ROSE: chat has spent 100% of its budget for 2026-06"]
    assert sent("90") == 0
    assert alerts.entries(Ledger(fleet)) == []


def test_a_forecast_over_budget_is_an_alert_until_it_is_spent(tmp_path: Path, config: Any, hook: Hook) -> None:
    # The team spends $82.80 a day, and has spent $2,394.00 of $2,450.
    weeks = write(tmp_path / "weeks", weeks_events(40))
    asked, month, now_us = (
        config({"kind": "budget", "at": [1.0]}),
        period.of_month("2026-06"),
        (T0_NS + 29 * DAY_NS) // 1000,
    )
    budget.set_budget(Ledger(weeks), "chat", "2450", month)
    alerts.check(Ledger(weeks), asked, now_us)
    assert hook.titles == ["ROSE: chat is forecast to exceed its budget for 2026-06"]
    assert "The forecast for the month is $2,47" in hook.bodies[0]
    budget.set_budget(Ledger(weeks), "chat", "1000", month)
    alerts.check(Ledger(weeks), asked, now_us)
    assert hook.titles[1:] == ["ROSE: chat has spent 100% of its budget for 2026-06"]


def test_a_message_that_does_not_arrive_is_sent_by_the_next_round(fleet: Path, config: Any, hook: Hook) -> None:
    asked, hook.code = config({"kind": "ledger"}), 503
    done = alerts.check(Ledger(fleet), asked, NOW_US)
    (failed,) = done.failed
    assert (done.sent, failed.level) == (0, None)
    assert "503" in str(failed.error)
    assert SECRET not in str(failed)
    (fleet.parent / "alerts.toml").write_text(
        f'urls_file = "{asked.urls_file}"\n[[rule]]\nname = "ledger"\nkind = "ledger"\nto = ["hook"]\n'
    )
    with pytest.raises(AlertsError, match=r"the ledger was verified never -> hook: .*503"):
        alerts.send(Ledger(fleet), file=fleet.parent / "alerts.toml")
    hook.code = 200
    assert alerts.check(Ledger(fleet), asked, NOW_US).sent == 1
    assert alerts.check(Ledger(fleet), asked, NOW_US).sent == 0
    assert hook.titles == ["ROSE: the ledger was verified never"] * 3


def test_too_few_requests_are_not_known(fleet_kept: Path, config: Any) -> None:
    (outcome,) = alerts.evaluate(Ledger(fleet_kept), config({"kind": "serving", "target": 0.99}), NOW_US)
    assert outcome.unknown == "since 2026-06-17T00:00:00Z, no requests"


def test_requests_count_in_their_hours_and_provenance(tmp_path: Path, config: Any) -> None:
    asked = [request(n, at_s, ms) for n, (at_s, ms) in enumerate([(7000, 100), (8000, 100), (9000, 900)] * 100)]
    root = write(tmp_path / "ledger", [*begun(), *asked])
    write(root, [request(1000 + n, 9000, 900) for n in range(100)], writer="other", provenance="simulated")
    for target, hours, titles in (
        (0.4, 1, []),
        (0.6, 1, ["serving kept 50.00% of its promises, target 60.00%"]),
        (0.6, 2, []),
    ):
        rules = config({"kind": "serving", "target": target, "hours": hours})
        (outcome,) = alerts.evaluate(Ledger(root), rules, us(3 * 3600))
        assert [alert.title for alert in outcome.alerts] == titles


def test_mail_arrives(config: Any, tmp_path: Path) -> None:
    mails = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            mails.append(message_from_bytes(envelope.content))
            return "250 OK"

    class Loopback(Controller):
        def _trigger_server(self) -> None:
            self.port = int(self.server.sockets[0].getsockname()[1])
            super()._trigger_server()

    controller = Loopback(Handler(), hostname="127.0.0.1", port=0)
    controller.start()
    try:
        with (tmp_path / "urls").open("a") as urls:
            urls.write(f"finance = mailto://127.0.0.1:{controller.port}?from=rose@example.com&to=cfo@example.com\n")
        assert alerts.send_test(config({"kind": "ledger", "to": ["finance"]}), "finance") is None
    finally:
        controller.stop()
    (mail,) = mails
    assert (mail["subject"], mail["to"]) == ("ROSE: test", "cfo@example.com")


def test_destinations_come_from_a_private_file_or_the_environment(
    config: Any, hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, urls = config({"kind": "ledger"}), tmp_path / "urls"
    monkeypatch.setenv("ROSE_ALERT_URLS", f"hook={hook.url}")
    assert alerts.send_test(asked.model_copy(update={"urls_file": None}), "hook") is None
    urls.chmod(0o640)
    with pytest.raises(AlertsError, match="has mode 0640"):
        alerts.destinations(asked)
    urls.chmod(0o600)
    for text, message in (
        (f"hook=nope://{SECRET}", "destination 'hook' of .* is not an Apprise URL"),
        (f"hook=json://example.com/{SECRET}", "destination 'hook' of .* sends clear text"),
        (SECRET, "line 1 of .* must be NAME=URL"),
        (f"hok={hook.url}", "rule 'ledger': no destination 'hook'"),
    ):
        urls.write_text(text)
        with pytest.raises(AlertsError, match=message) as error:
            alerts.destinations(asked)
        assert SECRET not in str(error.value)
    assert SECRET not in caplog.text
    urls.unlink()
    with pytest.raises(AlertsError, match=r"urls_file .* cannot be read"):
        alerts.destinations(asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "cannot read alerts"),
        ('[[rule]]\nname = "a"\nkind = "slow"\nto = ["x"]', "rule.0: Input tag 'slow'"),
        ('[[rule]]\nname = "a"\nkind = "ledger"\nto = []', "rule.0.ledger.to: "),
        ('[[rule]]\nname = "a"\nkind = "ledger"\nto = ["x"]\n' * 2, "two rules are named 'a'"),
    ],
)
def test_a_wrong_file_names_field_and_value(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "alerts.toml").write_text(text)
    with pytest.raises(AlertsError, match=message):
        alerts.load(tmp_path / "alerts.toml")
