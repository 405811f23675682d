"""Blocking calls to the controller. They are repeated while the controller does not answer."""

import http.client
import json
import logging
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from rose.client.address import ClientError, ControllerAwayError, RunAddress, message_of, refusal
from rose.http_calls import authorization

_TIMEOUT_S = 10.0
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0  # Drawn at random: clients of a restarted controller do not all return at once.
RETRY_STATUSES = frozenset({429, 502, 503, 504})  # Too many turns, a full disk, or a proxy without a controller.
_STATUSES_WITH_REASON = frozenset({429, 503})  # Statuses among them that the controller itself sends, with a reason.
RESUME = "resume the run"
WARN_S = 30.0

#: Result of a failed try: no answer, a reason to wait, or an expired run that must be resumed first.
Failure = Literal["silent", "busy", "expired"]

_log = logging.getLogger("rose.client")
_warned_s: dict[str, float] = {}


def failure_of(status: int, answer: Any) -> tuple[Failure, str]:
    text = message_of(answer)
    return ("busy", text) if text and status in _STATUSES_WITH_REASON else ("silent", f"status {status}")


class RetryLimit:
    """Limits the repeats of a request to `away_s` seconds. If `waits`, the controller's busy time does not count."""

    def __init__(self, url: str, away_s: float, *, waits: bool, then: str = RESUME) -> None:
        self._url, self._away_s, self._waits, self._then = url, away_s, waits, then
        self._since = time.monotonic()

    def begin(self) -> None:
        self._since = time.monotonic()

    def pause_s(self, failure: Failure, reason: str, open_s: float = 0.0) -> float:
        now = time.monotonic()
        waits = failure == "busy" and self._waits
        # A controller that died during a turn is away from now on, not since the turn before.
        if waits or open_s > PAUSE_MAX_S:
            self._since = now
        if now - self._since >= self._away_s and not waits:
            raise self.over(failure, reason)
        if waits and now - _warned_s.get(self._url, -WARN_S) >= WARN_S:
            _warned_s[self._url] = now
            _log.warning("the controller at %s is busy and will be asked again: %s", self._url, reason)
        return random.uniform(PAUSE_MIN_S, PAUSE_MAX_S)  # noqa: S311 - no secret

    def over(self, failure: Failure, reason: str) -> ControllerAwayError:
        for_s = f" for {self._away_s:.0f} s" if self._away_s else ""
        if failure == "silent":
            problem = f"did not answer{for_s} ({reason}): start it, or correct the URL, then {self._then}"
        else:
            problem = f"answers, but is busy or refuses{for_s}: {reason}; {self._then} once that is over"
        return ControllerAwayError(f"the controller at {self._url} {problem}")


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
    keep_trying: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """Return the controller's answer. If no answer comes, the request is repeated for `away_s` seconds. Raises
    ControllerAwayError or, if the controller refuses the request, the error that `refusal` returns."""
    data = None if message is None else json.dumps(message).encode()
    headers = {"Content-Type": "application/json", **authorization(token)}
    retry = RetryLimit(url, away_s, waits=waits, then=then)
    while True:
        try:
            status, answer = _ask(urllib.request.Request(url + path, data=data, headers=headers, method=method))
        except (OSError, http.client.HTTPException) as error:
            failure: Failure = "silent"
            reason = str(getattr(error, "reason", None) or error or type(error).__name__)
        else:
            if status < 300:
                return answer
            if status not in RETRY_STATUSES:
                raise refusal(url, status, answer)
            failure, reason = failure_of(status, answer)
        pause_s = retry.pause_s(failure, reason)
        if not keep_trying():
            raise retry.over(failure, reason)
        time.sleep(pause_s)


def _ask(request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.status, _read(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error.read())


def _read(body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body or b"{}")
    except ValueError:
        return {"text": body[:200].decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"answer": answer}


def warn_stalled(address: RunAddress, waiting: int) -> None:
    with suppress(ClientError):  # The turns themselves report an absent controller.
        why = call(address.url, "GET", f"/runs/{address.run_id}", token=address.token).get("waits")
        if why is not None:
            _log.warning("%d turns of run %s wait: %s", waiting, address.run_id, why)
