from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.alerts import webhook
from rose.pricing.alerts.config import AlertsError, WebhookChannel
from rose.pricing.alerts.message import Message
from rose.pricing.alerts.webhook import DeliveryError
from tests.pricing.alerts.servers import Web, certificate, web

DOCUMENT = Path(__file__).parents[3] / "docs" / "alerts.md"


@pytest.fixture
def channel(webhook_channel: dict[str, Any]) -> WebhookChannel:
    return WebhookChannel.model_validate(webhook_channel)


def test_a_message_is_posted_and_signed(hook: Web, channel: WebhookChannel, message: Message) -> None:
    webhook.send(channel, message)
    (posted,) = hook.got
    assert posted.path == "/rose"
    headers = {name.lower(): value for name, value in posted.headers.items()}
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == message.message_id
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + posted.body
    expected = base64.b64encode(hmac.new(b"correct horse", signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    data = json.loads(posted.body)
    assert (data["key"], data["kind"], data["level"]) == (message.key, "firing", 800)
    assert data["text"].startswith("ROSE: ")


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md."""
    key = webhook.key_of("c", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = webhook.signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_the_documents_show_tells_a_genuine_message(hook: Web, channel: WebhookChannel, message: Message) -> None:
    webhook.send(channel, message)
    (posted,) = hook.got
    (program,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    shown: dict[str, Any] = {}
    exec(program, shown)
    headers = {name.lower(): value for name, value in posted.headers.items()}
    assert shown["is_genuine"]("correct horse", headers, posted.body)
    assert not shown["is_genuine"]("correct horse", headers, posted.body + b" ")
    assert not shown["is_genuine"]("wrong horse", headers, posted.body)


@pytest.mark.parametrize(
    ("code", "final"), [(500, False), (503, False), (429, False), (408, False), (400, True), (404, True), (302, True)]
)
def test_what_is_not_taken_is_said_and_a_redirect_is_not_followed(
    hook: Web, channel: WebhookChannel, message: Message, code: int, final: bool
) -> None:
    hook.codes = [code]
    with pytest.raises(DeliveryError, match=f"^{hook.url} answered {code}") as raised:
        webhook.send(channel, message)
    assert raised.value.final == final
    assert len(hook.got) == 1


def test_a_server_that_is_not_there_or_does_not_answer_may_be_later(
    hook: Web, channel: WebhookChannel, message: Message
) -> None:
    hook.before = lambda posted: time.sleep(1.5)
    with pytest.raises(DeliveryError, match="timed out") as raised:
        webhook.send(channel.model_copy(update={"timeout_s": 0.3}), message)
    assert not raised.value.final
    with pytest.raises(DeliveryError, match="refused") as raised:
        webhook.send(channel.model_copy(update={"url": "http://127.0.0.1:1/"}), message)
    assert not raised.value.final


def test_a_certificate_that_nobody_vouches_for_is_refused(
    channel: WebhookChannel, message: Message, tmp_path: Path
) -> None:
    file, context = certificate(tmp_path)
    with web(context) as secure:
        there = channel.model_copy(update={"url": f"{secure.url}/rose"})
        with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
            webhook.send(there, message)
        assert secure.got == []
        webhook.send(there.model_copy(update={"ca_file": file}), message)
        assert len(secure.got) == 1


def test_a_url_that_is_a_secret_is_kept_elsewhere_and_in_no_error(
    hook: Web, channel: WebhookChannel, message: Message, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(f"{hook.url}/services/T0/hunter2\n")
    kept = channel.model_copy(update={"url": None, "url_file": file})
    webhook.send(kept, message)
    monkeypatch.setenv("ROSE_TEST_URL", file.read_text().strip())
    webhook.send(channel.model_copy(update={"url": None, "url_env": "ROSE_TEST_URL"}), message)
    assert [posted.path for posted in hook.got] == ["/services/T0/hunter2"] * 2
    hook.codes = [404]
    with pytest.raises(DeliveryError) as raised:
        webhook.send(kept, message)
    assert "hunter2" not in str(raised.value)
    file.write_text("http://hooks.example.com/hunter2")
    with pytest.raises(AlertsError, match="holds must be https beyond this host") as refused:
        webhook.send(kept, message)
    assert "hunter2" not in str(refused.value)


def test_without_a_secret_nothing_is_sent(
    hook: Web, channel: WebhookChannel, message: Message, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file.write_text(" \n")
    with pytest.raises(AlertsError, match=r"channel 'c': .* is empty; put the secret into it"):
        webhook.send(channel, message)
    secret_file.unlink()
    with pytest.raises(AlertsError, match="its secret cannot be read from"):
        webhook.send(channel, message)
    monkeypatch.delenv("ROSE_TEST_SECRET", raising=False)
    named = channel.model_copy(update={"secret_file": None, "secret_env": "ROSE_TEST_SECRET"})
    with pytest.raises(AlertsError, match="ROSE_TEST_SECRET is not set"):
        webhook.send(named, message)
    assert hook.got == []
    monkeypatch.setenv("ROSE_TEST_SECRET", "whsec_%%%")
    with pytest.raises(AlertsError, match="is no base64"):
        webhook.send(named, message)
    monkeypatch.setenv("ROSE_TEST_SECRET", "x")
    webhook.send(named, message)
    assert len(hook.got) == 1
