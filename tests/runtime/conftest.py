from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from rose.runtime.engines.forkserver import ForkServer

#: SGLang would compile the lookup of a sharded vocabulary, for half a minute. It is read while torch is loaded, so a
#: fork server and its engines share it.
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1"}


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    """The server that live engines of these tests are forked from; give their specs `.path` and `.environment`."""
    folder = tmp_path_factory.mktemp("forks")
    server = ForkServer.start(folder / "socket", folder / "log", ENVIRONMENT)
    yield server
    server.stop()
