from types import SimpleNamespace

import pytest

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks import gate, telemetry


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only where a test says so."""
    made = SimpleNamespace(now_ns=monotonic_ns())
    for module in (gate, telemetry):
        monkeypatch.setattr(module, "monotonic_ns", lambda: made.now_ns)
    return made
