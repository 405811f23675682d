"""How many files, connections among them, a process may open."""

from __future__ import annotations

import resource

_CONNECTIONS_MAX = 65_536


def raise_file_limit() -> None:
    """Let this process, and those that it starts, open as many files as the host allows it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def connections_max() -> int:
    """Return how many connections a server keeps: half of the files that the process may open, since an answer may
    need a file or a connection of its own."""
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, _CONNECTIONS_MAX)
