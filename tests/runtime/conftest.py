import time
from collections.abc import Callable

import pytest

from rose.runtime.engines.forkserver import ForkServer

#: SGLang would compile a vocabulary's lookup for half a minute; fork server and engines share it.
ENVIRONMENT = {"TORCHDYNAMO_DISABLE": "1"}


def until(condition: Callable[[], object], seconds: float = 240.0) -> None:
    """Wait until the condition holds, and look less often the longer that takes."""
    deadline, pause_s = time.monotonic() + seconds, 0.02
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(pause_s)
        pause_s = min(0.3, 1.2 * pause_s)


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forks")
    server = ForkServer.start(folder / "socket", folder / "log", ENVIRONMENT)
    yield server
    server.stop()
