"""Waiting for a fleet that is being started."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from rose.client.address import authorization, refusal
from rose.client.errors import ControllerAwayError

_LOOK_S = 0.2
_SAY_S = 5.0
_TIMEOUT_S = 5.0


def wait_ready(url: str, token: str | None, wait_s: float, say: Callable[[str], None]) -> None:
    """Return once nothing is missing of the fleet; `say` is told what is, every few seconds.

    Raises ControllerAwayError after `wait_s`, and ClientError for a wrong token.
    """
    until, told = time.monotonic() + wait_s, time.monotonic()
    while (lacking := _missing(url, token)) is not None:
        if time.monotonic() >= until:
            raise ControllerAwayError(f"the fleet at {url} was not ready within {wait_s:.0f} s: {lacking}")
        if time.monotonic() - told >= _SAY_S:
            told = time.monotonic()
            say(f"waiting for the fleet: {lacking}")
        time.sleep(_LOOK_S)


def _missing(url: str, token: str | None) -> str | None:
    """What is missing, in words; None: nothing."""
    request = urllib.request.Request(f"{url.rstrip('/')}/readiness", headers=authorization(token))
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            try:
                answer = json.loads(error.read())
            except ValueError:
                answer = {}
        if error.code != 503:
            raise refusal(url, error.code, answer) from None
        return "; ".join(answer.get("missing", [])) or "it does not say what is missing"
    except OSError as error:
        return f"its controller does not answer ({getattr(error, 'reason', error)})"
