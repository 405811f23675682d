"""Blocking calls to the controller, tried again while it is away."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from rose.client.address import authorization, refusal
from rose.client.patience import RESUME, RETRIED, Failure, Patience, retried

_TIMEOUT_S = 10.0


def call(
    url: str,
    method: str,
    path: str,
    message: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    away_s: float = 0.0,
    waits: bool = False,
    then: str = RESUME,
    going_on: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """The answer to one call; one that does not come is asked for again for `away_s`, as long as `going_on` holds; with
    `waits`, one that does not come since the controller is busy, for as long as it says so. `then`: as in `Patience`.

    Raises ControllerAwayError, and what `refusal` makes of an answer that says no.
    """
    data = None if message is None else json.dumps(message).encode()
    headers = {"Content-Type": "application/json", **authorization(token)}
    patience = Patience(url, away_s, waits=waits, then=then)
    while True:
        try:
            status, answer = _ask(urllib.request.Request(url + path, data=data, headers=headers, method=method))
        except (OSError, http.client.HTTPException) as error:
            failure: Failure = "silent"
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        else:
            if status < 300:
                return answer
            if status not in RETRIED:
                raise refusal(url, status, answer)
            failure, reason = retried(status, answer)
        pause_s = patience.pause_s(failure, reason)
        if not going_on():
            raise patience.over(failure, reason)
        time.sleep(pause_s)


def _ask(request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    """The status and the answer, also of one that says no."""
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, _read(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error.read())


def _read(body: bytes) -> dict[str, Any]:
    """A JSON object; what is none is somebody else's page."""
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {"text": body[:200].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"answer": answer}
