"""Refused requests, as HTTP errors in OpenAI's form, which SGLang's clients read too."""

from typing import Any

from rose.errors import UserError


class RefusedError(UserError):
    """The answer to a refused request. `param` is the wrong field. `kind` is the error's name, for programs."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.kind = status, param, kind

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"} if self.status in (429, 503) else {}


class RequestError(RefusedError):
    """The request is invalid. The message names the wrong field."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


def error_body(status: int, message: str, param: str | None = None, kind: str | None = None) -> dict[str, Any]:
    default = "EngineUnavailable" if status == 503 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind or default, "param": param, "code": status}}
