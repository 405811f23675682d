"""Limits of an HTTP server's clients. The module `protocol` enforces them in uvicorn."""

import resource

HEAD_S = 10.0
HEAD_BYTES_MAX = 64 << 10
BODY_S = 20.0
BODY_BYTES_MIN = 64 << 10  # This much of a body, or its end, must come within BODY_S.
ANSWER_S = 20.0
ANSWER_BYTES_MIN = 64 << 10  # This much of a waiting answer must be taken within ANSWER_S.
IDLE_S = 75.0
ACCEPTS = 64  # Connections accepted at a time, so that first requests are read before there are too many.


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the host allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max() -> int:
    """Return the connection limit. It is half of the open-file limit, because an answer may open a file."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 65_536)
