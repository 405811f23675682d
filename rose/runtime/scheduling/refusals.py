"""Formats HTTP errors in OpenAI's form, which SGLang's clients read too."""

from typing import Any

_SERVER_ERRORS = {503: "EngineUnavailable"}


def error_body(status: int, message: str, param: str | None = None, kind: str | None = None) -> dict[str, Any]:
    """Return the body of an error answer. `param` names the wrong field. `kind` names the error for programs."""
    kind = kind or ("invalid_request_error" if status < 500 else _SERVER_ERRORS.get(status, "server_error"))
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}
