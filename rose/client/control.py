"""Blocking calls to the controller, tried again while it is away."""

from __future__ import annotations

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from rose.client.address import RunAddress, authorization, refusal
from rose.client.errors import ClientError, ControllerAwayError
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


#: The controller is asked so often at most.
STALLED_S = 10.0
_log = logging.getLogger("rose.client")


class Stalls:
    """Of the turns of one call, from now on. What it says is a warning of the logger `rose.client`."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._said: str | None = None

    def look(self, address: RunAddress, waiting: int, *, moved: bool) -> None:
        """So many turns are not completed yet; `moved`: some were since the last time."""
        now_s = time.monotonic()
        if moved:
            self._since_s = now_s
        if now_s - self._since_s < STALLED_S:
            return
        self._since_s = now_s
        # One that is away is what the turns themselves say.
        with suppress(ClientError):
            why = call(address.url, "GET", f"/runs/{address.run_id}", token=address.token).get("waits")
            if why is not None and why != self._said:
                self._said = why
                _log.warning("%d turns of run %s wait: %s", waiting, address.run_id, why)


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
