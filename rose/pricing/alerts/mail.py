"""Messages by e-mail: plain text with HTML beside it, over SMTP with TLS."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import format_datetime

from rose.pricing.alerts.config import EmailChannel, secret
from rose.pricing.alerts.message import Message
from rose.pricing.alerts.webhook import DeliveryError
from rose.pricing.closing.period import moment


def send(channel: EmailChannel, message: Message) -> str | None:
    """Hand a message to the mail server; returns which addresses it refused, in words, if it took it for others.

    Nothing is said in clear where TLS was asked for. Raises DeliveryError, and AlertsError where there is no password.
    """
    password = None
    if channel.username is not None:
        password = secret(channel.name, channel.password_file, channel.password_env)
    try:
        mail = compose(channel, message)
    except ValueError as error:
        raise DeliveryError(f"the mail cannot be written: {error}", final=True) from None
    try:
        context = ssl.create_default_context(cafile=channel.ca_file)
        with _connect(channel, context) as server:
            if channel.security == "starttls":
                server.starttls(context=context)
            if channel.username is not None and password is not None:
                server.login(channel.username, password)
            refused = server.send_message(mail)
            return f"refused for {_refusals(refused)}" if refused else None
    except smtplib.SMTPRecipientsRefused as error:
        final = all(code >= 500 for code, _ in error.recipients.values())
        text = f"{channel.host} refused every address: {_refusals(error.recipients)}"
        raise DeliveryError(text, final=final) from None
    except smtplib.SMTPResponseException as error:
        text = f"{channel.host} answered {error.smtp_code} {_words(error.smtp_error)}"
        # A login that fails may be put right by another password; a mail that is refused stays refused.
        final = isinstance(error, smtplib.SMTPDataError | smtplib.SMTPSenderRefused) and error.smtp_code >= 500
        raise DeliveryError(text, final=final) from None
    except (OSError, smtplib.SMTPException) as error:
        raise DeliveryError(f"{channel.host}:{channel.port}: {error}") from None


def compose(channel: EmailChannel, message: Message) -> EmailMessage:
    """The mail. Its Message-ID is made of the message's id, so that one that comes twice can be told."""
    mail = EmailMessage()
    mail["Subject"] = message.subject
    mail["From"] = channel.sender
    mail["To"] = ", ".join(channel.to)
    mail["Date"] = format_datetime(moment(message.at_us * 1000))
    mail["Message-ID"] = f"<{message.message_id}@{channel.sender.rpartition('@')[2]}>"
    # So that no vacation answers it.
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(message.text)
    mail.add_alternative(message.html, subtype="html")
    return mail


def _connect(channel: EmailChannel, context: ssl.SSLContext) -> smtplib.SMTP:
    if channel.security == "tls":
        return smtplib.SMTP_SSL(channel.host, channel.port, timeout=channel.timeout_s, context=context)
    return smtplib.SMTP(channel.host, channel.port, timeout=channel.timeout_s)


def _refusals(refused: Mapping[str, tuple[int, bytes | str]]) -> str:
    return "; ".join(f"{address}: {code} {_words(text)}" for address, (code, text) in refused.items())


def _words(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
