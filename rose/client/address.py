"""Where a run is, for the processes of a trainer: what opens a run has one, and may hand it to its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rose.client.errors import ClientError, RunEndedError, RunExpiredError, RunTakenError

#: How long a controller that is away or has no room is tried again.
AWAY_S = 120.0
#: Between two tries, drawn anew each time: clients of a controller that comes back do not all return at once.
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
#: It is there but cannot answer now: too many turns, a disk that refuses, or something between it and here.
BUSY = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAddress:
    """A run at a controller. Plain data: it can be sent to another process."""

    url: str
    run_id: str
    #: The client's number among those that had the run: an older one may not publish or record.
    fence: int
    token: str | None = field(default=None, repr=False)
    away_s: float = AWAY_S

    @property
    def base(self) -> str:
        """The base URL of the run: `base/generate` is what an SGLang client is given."""
        return f"{self.url}/runs/{self.run_id}"

    @property
    def headers(self) -> dict[str, str]:
        return authorization(self.token)


def authorization(token: str | None) -> dict[str, str]:
    """The headers that say who asks."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def refusal(url: str, status: int, answer: Any) -> ClientError:
    """The error for an answer that says no."""
    said = answer.get("error") if isinstance(answer, dict) else None
    text = str(said or f"status {status}")
    if status == 401:
        return ClientError(f"the controller at {url} wants its token: give `token` (`gateway.token` of its fleet file)")
    if status == 409 and "taken over" in text:
        return RunTakenError(text)
    if status == 409 and "has expired" in text:
        return RunExpiredError(text)
    if status == 404 or (status == 409 and "is closed" in text):
        return RunEndedError(f"the controller at {url} refused: {text}")
    return ClientError(f"the controller at {url} refused: {text}")
