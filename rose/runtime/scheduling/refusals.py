"""The one form of an error over HTTP: OpenAI's, which the clients of SGLang read too."""

from typing import Any

_SERVER_ERRORS = {503: "EngineUnavailable"}


def error_body(status: int, message: str, param: str | None = None, kind: str | None = None) -> dict[str, Any]:
    """Return the body of an error. `param` is the field to blame, `kind` the error's name for programs."""
    kind = kind or ("invalid_request_error" if status < 500 else _SERVER_ERRORS.get(status, "server_error"))
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
