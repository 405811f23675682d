"""Blocking calls to the controller, tried again while it is away."""

from __future__ import annotations

import http.client
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from rose.client.address import BUSY, PAUSE_MAX_S, PAUSE_MIN_S, authorization, refusal
from rose.client.errors import ControllerAwayError

_TIMEOUT_S = 10.0


def call(
    url: str,
    method: str,
    path: str,
    message: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    away_s: float = 0.0,
    going_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """The answer to one call; one that does not come is asked for again for `away_s`, as long as `going_on` holds.

    Raises ControllerAwayError, and what `refusal` makes of an answer that says no.
    """
    data = None if message is None else json.dumps(message).encode()
    headers = {"Content-Type": "application/json", **authorization(token)}
    until = time.monotonic() + away_s
    while True:
        request = urllib.request.Request(url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                return _read(response.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in BUSY:
                    raise refusal(url, error.code, _read(error.read())) from None
            reason = f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        if time.monotonic() >= until or not going_on():
            raise ControllerAwayError(away(url, away_s, reason))
        time.sleep(random.uniform(PAUSE_MIN_S, PAUSE_MAX_S))  # noqa: S311 - no secret


def away(url: str, away_s: float, reason: str) -> str:
    """The message of a controller that does not answer."""
    for_s = f" for {away_s:.0f} s" if away_s else ""
    return f"the controller at {url} did not answer{for_s} ({reason}): start it, or correct the URL, and resume the run"


def _read(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {"error": body[:200].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"answer": answer}
