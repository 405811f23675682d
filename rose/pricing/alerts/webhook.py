"""Messages by webhook: a POST of JSON, signed as https://www.standardwebhooks.com says.

`webhook-id` is the message's id, `webhook-timestamp` the Unix time in seconds, and `webhook-signature` is `v1,` and the
base64 of HMAC-SHA256 over `id.timestamp.body`. The key is the secret's text, or what follows `whsec_` in it, base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ssl
import time
import urllib.error
import urllib.request
from email.message import Message as Headers
from http import HTTPStatus
from http.client import HTTPException
from typing import IO
from urllib.parse import urlsplit

from rose.pricing.alerts.config import AlertsError, WebhookChannel, secret
from rose.pricing.alerts.message import Message

_PREFIX = "whsec_"
#: Answers below 500 after which a later try may do better.
_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


class DeliveryError(Exception):
    """A message was not taken; `final` says that it will not be the next time either."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is signed for one place goes to no other."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Headers, newurl: str
    ) -> None:
        return None


def send(channel: WebhookChannel, message: Message) -> None:
    """Post a message. Raises DeliveryError, and AlertsError where there is no secret or URL."""
    body, seconds, url = message.body(), int(time.time()), channel.address()
    key = key_of(channel.name, secret(channel.name, channel.secret_file, channel.secret_env))
    request = urllib.request.Request(
        url,
        data=body,
        method="POST",
        headers={
            "Content-Type": "application/json",
            "User-Agent": "rose-alerts",
            "webhook-id": message.message_id,
            "webhook-timestamp": str(seconds),
            "webhook-signature": signature(key, message.message_id, seconds, body),
        },
    )
    try:
        context = ssl.create_default_context(cafile=channel.ca_file)
        # No proxy of the environment: what is sent names teams and amounts.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect())
        with urllib.request.build_opener(*handlers).open(request, timeout=channel.timeout_s):
            pass
    except urllib.error.HTTPError as error:
        error.close()
        final = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code not in _LATER
        raise DeliveryError(f"{_place(url)} answered {error.code} {error.reason}", final=final) from None
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(f"{_place(url)}: {getattr(error, 'reason', None) or error}") from None


def _place(url: str) -> str:
    """Scheme, host and port: what follows in a URL may be as good as a password, and errors go on record."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def key_of(channel: str, text: str) -> bytes:
    """The key that a secret says. Raises AlertsError for a `whsec_` that is no base64."""
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise AlertsError(f"channel {channel!r}: what follows {_PREFIX} in its secret is no base64") from None


def signature(key: bytes, message_id: str, seconds: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = b".".join((message_id.encode(), str(seconds).encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
