"""How long a controller is asked again: one that is silent, and one that answers that it cannot do it now."""

from __future__ import annotations

import logging
import random
import time
from typing import Any, Literal

from rose.client.errors import ControllerAwayError

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
