"""The address of a run, and the errors of the client."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rose.errors import UserError
from rose.http_calls import AWAY_S


class ClientError(UserError):
    """The base class of the errors in this package: an argument was wrong, or the controller refused a request."""


class ControllerAwayError(ClientError):
    """An error: the controller did not answer or was busy, and the run has waited for as long as it may."""

    exit_code: ClassVar[int] = 1


class RunTakenError(ClientError):
    """An error: a newer client resumed the run. This client may no longer publish or record for the run."""

    exit_code: ClassVar[int] = 1


class RunEndedError(ClientError):
    """An error: the controller has no such run, or the run is closed."""

    exit_code: ClassVar[int] = 1


class RunExpiredError(ClientError):
    """An error: the run was silent for too long. It can be resumed."""

    exit_code: ClassVar[int] = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAddress:
    url: str
    run_id: str
    fence: int  # Number of the client; older clients may not publish or record.
    token: str | None = field(default=None, repr=False)
    away_s: float = AWAY_S

    @property
    def base(self) -> str:
        return f"{self.url}/runs/{self.run_id}"


def message_of(answer: Any) -> str | None:
    """Return the error message in an answer of the controller, or None if it has none."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error["message"]) if isinstance(error, dict) and "message" in error else None


def refusal(url: str, status: int, answer: Any) -> ClientError:
    kind = answer["error"].get("type") if message_of(answer) is not None else None
    other = answer.get("text") if isinstance(answer, dict) else None
    text = message_of(answer) or str(other or f"status {status}")
    if status == 401:
        return ClientError(f"the controller at {url} needs a token: give `token`, from `rose token create`")
    if kind == "RunTaken":
        return RunTakenError(text)
    if kind == "RunExpired":
        return RunExpiredError(text)
    if status == 404 or kind == "RunClosed":
        return RunEndedError(f"the controller at {url} refused: {text}")
    return ClientError(f"the controller at {url} refused: {text}")
