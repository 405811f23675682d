"""The address of a run, and the errors of the client."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rose.errors import UserError
from rose.http_calls import AWAY_S


class ClientError(UserError):
    """The base class of this package's errors: an argument was wrong, or the controller refused a request."""


class ControllerAwayError(ClientError):
    """The controller did not answer, or was busy, for `away_s` seconds."""

    exit_code: ClassVar[int] = 1


class RunLostError(ClientError):
    """The base class of the errors of a run that ended, expired, or was resumed by a newer client."""

    exit_code: ClassVar[int] = 1


class RunTakenError(RunLostError):
    """A newer client resumed the run, so this client may no longer publish or record."""


class RunEndedError(RunLostError):
    """The controller has no such run, or the run is closed."""


class RunExpiredError(RunLostError):
    """The controller got no request of the run for too long. The run can be resumed."""


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
