"""Where a run is, for the processes of a trainer: what opens a run has one, and may hand it to its workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rose.client.errors import ClientError, RunEndedError, RunExpiredError, RunTakenError

#: How long a controller that is away is tried again.
AWAY_S = 120.0


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
    reason = (answer.get("error") or answer.get("text")) if isinstance(answer, dict) else None
    text = str(reason or f"status {status}")
    if status == 401:
        return ClientError(f"the controller at {url} wants its token: give `token` (`gateway.token` of its fleet file)")
    if status == 409 and "taken over" in text:
        return RunTakenError(text)
    if status == 409 and "has expired" in text:
        return RunExpiredError(text)
    if status == 404 or (status == 409 and "is closed" in text):
        return RunEndedError(f"the controller at {url} refused: {text}")
    return ClientError(f"the controller at {url} refused: {text}")
