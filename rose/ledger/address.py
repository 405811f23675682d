"""Protects a server: without a token it serves only this machine, and it refuses writes by foreign web pages."""

import ipaddress
import re

from rose.errors import UserError
from rose.private_files import check_token

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]:/?#@\s]+)(?::\d+)?")


class OpenAddressError(UserError):
    """Other machines could reach a server that asks for no token."""


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_guarded(host: str, token: str | None, ways: str) -> None:
    """Raise OpenAddressError if others can reach `host` without a token, or SecretError if `token` is easy to guess."""
    if token is not None:
        check_token(token)
    elif not is_loopback(host):
        raise OpenAddressError(f"{host} can be reached from other machines: give a token by {ways}, or bind 127.0.0.1")


def refusal(method: str, host: str, origin: str, *, has_token: bool) -> str | None:
    """Return why a request is refused, or None. `host` and `origin` are headers of the request. With `has_token`, the
    server asks for a token, which foreign pages lack. Then any `host` is accepted and, for a read, any `origin`."""
    if not has_token:
        parts = _HOST.fullmatch(host)
        if parts is None or not is_loopback(parts["name"].strip("[]").lower()):
            return "without a token, only this machine is answered, at 127.0.0.1 or localhost"
    elif method in ("GET", "HEAD", "OPTIONS"):
        return None
    if origin and origin.rpartition("://")[2].lower() != host.lower():
        return f"a page of another site may not ask this: its Origin is not {host}"
    return None
