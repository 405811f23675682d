"""Blocking calls to the controller, tried again while it is away."""

from __future__ import annotations

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

from rose.client.address import ClientError, ControllerAwayError, RunAddress, authorization, refusal

_TIMEOUT_S = 10.0
#: Between two tries, drawn anew each time: clients of a controller that comes back do not all return at once.
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
#: It cannot answer now: too many turns, a disk that refuses, or something between it and here.
RETRIED = frozenset({429, 502, 503, 504})
#: Those of them that the controller gives itself, with the reason.
_OWN = frozenset({429, 503})
#: What to do once a controller is back that was away.
RESUME = "resume the run"
#: How often a process says why it waits for a controller that answers.
WARN_S = 30.0

#: What came of a try: no answer; one that says what keeps it; one that says that the run has to be resumed first.
Failure = Literal["silent", "busy", "expired"]

_log = logging.getLogger("rose.client")
_warned_s: dict[str, float] = {}


def retried(status: int, answer: Any) -> tuple[Failure, str]:
    """Whose an answer is that says to try again, and its reason."""
    text = answer.get("error") if isinstance(answer, dict) else None
    return ("busy", str(text)) if text and status in _OWN else ("silent", f"status {status}")


class Patience:
    """With one thing that is asked of the controller at `url`, from now on.

    It is asked again for `away_s`. With `waits`, one that is busy is asked for as long as it says so: it is there, and
    what keeps it may take somebody hours to mend. The log has the reason then. `then` is what to do once it is back.
    """

    def __init__(self, url: str, away_s: float, *, waits: bool, then: str = RESUME) -> None:
        self._url, self._away_s, self._waits, self._then = url, away_s, waits, then
        self._since = time.monotonic()

    def begin(self) -> None:
        """It does what it was asked."""
        self._since = time.monotonic()

    def pause_s(self, failure: Failure, reason: str, held_s: float = 0.0) -> float:
        """How long to wait before the next try; `held_s` is how long this one took until it broke.

        Raises ControllerAwayError when there is to be none.
        """
        now = time.monotonic()
        waits = failure == "busy" and self._waits
        # One that died in the middle of a turn is away from now on, not since the one before it was.
        if waits or held_s > PAUSE_MAX_S:
            self._since = now
        if now - self._since >= self._away_s and not waits:
            raise self.over(failure, reason)
        if waits and now - _warned_s.get(self._url, -WARN_S) >= WARN_S:
            _warned_s[self._url] = now
            _log.warning("the controller at %s is busy, and is asked again: %s", self._url, reason)
        return random.uniform(PAUSE_MIN_S, PAUSE_MAX_S)  # noqa: S311 - no secret

    def over(self, failure: Failure, reason: str) -> ControllerAwayError:
        """The error of who asks no more."""
        for_s = f" for {self._away_s:.0f} s" if self._away_s else ""
        if failure == "silent":
            return ControllerAwayError(
                f"the controller at {self._url} did not answer{for_s} ({reason}): start it, or correct the URL, and "
                f"{self._then}"
            )
        return ControllerAwayError(
            f"the controller at {self._url} answers, but is busy or refuses{for_s}: {reason}; {self._then} once that "
            "is over"
        )


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
    try:
        status, answer = _ask(urllib.request.Request(f"{url.rstrip('/')}/readiness", headers=authorization(token)))
    except (OSError, http.client.HTTPException) as error:
        return f"its controller does not answer ({getattr(error, 'reason', error)})"
    if status < 300:
        return None
    if status != 503:
        raise refusal(url, status, answer)
    return "; ".join(answer.get("missing", [])) or "it does not say what is missing"
