from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.alerts import mail
from rose.pricing.alerts.config import AlertsError, EmailChannel
from rose.pricing.alerts.message import Message
from rose.pricing.alerts.webhook import DeliveryError
from tests.pricing.alerts.servers import Mails, certificate, mails


def channel(server: Mails, **fields: Any) -> EmailChannel:
    given = {
        "kind": "email",
        "name": "c",
        "host": "127.0.0.1",
        "port": server.port,
        "security": "none",
        "from": "rose@example.com",
        "to": ["ann@example.com", "ben@example.com"],
        "timeout_s": 5,
    }
    return EmailChannel.model_validate(given | fields)


def test_a_mail_has_plain_text_and_html(message: Message) -> None:
    with mails() as server:
        mail.send(channel(server), message)
    (got,) = server.got
    assert got["Subject"] == message.subject
    assert (got["From"], got["To"]) == ("rose@example.com", "ann@example.com, ben@example.com")
    assert got["Message-ID"] == f"<{message.message_id}@example.com>"
    assert server.to == ["ann@example.com", "ben@example.com"]
    plain, html = got.get_body(("plain",)), got.get_body(("html",))
    assert plain is not None
    assert html is not None
    assert "Team <img src=x" in plain.get_content()
    assert "<img" not in html.get_content()
    assert "&lt;img src=x" in html.get_content()


def test_no_text_makes_a_header(message: Message) -> None:
    with mails() as server:
        mail.send(channel(server), replace(message, title="a\r\nBcc: eve@example.com\u2028X-Y: z"))
    (got,) = server.got
    assert got["Bcc"] is None
    assert got["X-Y"] is None
    assert "Bcc: eve@example.com" in got["Subject"]
    assert server.to == ["ann@example.com", "ben@example.com"]


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_login_goes_over_tls(message: Message, tmp_path: Path, secret_file: Path, security: str) -> None:
    file, context = certificate(tmp_path)
    login = {"security": security, "username": "rose", "password_file": str(secret_file)}
    with mails(context, implicit=security == "tls", password="correct horse") as server:
        with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
            mail.send(channel(server, **login), message)
        assert server.logins == []
        mail.send(channel(server, ca_file=str(file), **login), message)
        assert server.logins == [("rose", "correct horse")]
        assert server.encrypted == [True]
        secret_file.write_text("wrong")
        with pytest.raises(DeliveryError, match="535") as raised:
            mail.send(channel(server, ca_file=str(file), **login), message)
        # Somebody may put the password right.
        assert not raised.value.final
    assert len(server.got) == 1


def test_a_server_without_tls_gets_neither_password_nor_mail(message: Message, secret_file: Path) -> None:
    with mails(password=None) as server:
        login = {"security": "starttls", "username": "rose", "password_file": str(secret_file)}
        with pytest.raises(DeliveryError, match="STARTTLS extension not supported"):
            mail.send(channel(server, **login), message)
    assert (server.logins, server.got) == ([], [])


def test_what_is_refused_is_said(message: Message, secret_file: Path) -> None:
    with mails() as server:
        server.answer = "552 too large"
        with pytest.raises(DeliveryError, match="552 too large") as raised:
            mail.send(channel(server), message)
        assert raised.value.final
        server.answer = "451 later"
        with pytest.raises(DeliveryError, match="451 later") as raised:
            mail.send(channel(server), message)
        assert not raised.value.final
        server.refused = "550 nobody"
        with pytest.raises(DeliveryError, match=r"refused every address: .*ann@example\.com: 550 nobody") as raised:
            mail.send(channel(server), message)
        assert raised.value.final
    with pytest.raises(DeliveryError, match=r"127\.0\.0\.1:1: .*refused") as raised:
        mail.send(channel(server, port=1), message)
    assert not raised.value.final
    with pytest.raises(AlertsError, match="ROSE_NOT_SET is not set"):
        mail.send(channel(server, username="rose", password_env="ROSE_NOT_SET"), message)


def test_an_address_that_is_refused_is_named_where_others_are_not(message: Message) -> None:
    with mails() as server:
        server.refused, server.refused_to = "550 nobody", "ben"
        assert mail.send(channel(server), message) == "refused for ben@example.com: 550 nobody"
    assert server.to == ["ann@example.com"]


def test_a_mail_that_cannot_be_written_is_final(message: Message) -> None:
    with mails() as server, pytest.raises(DeliveryError, match="cannot be written") as raised:
        mail.send(channel(server), replace(message, sentences=("\ud800",)))
    assert raised.value.final
