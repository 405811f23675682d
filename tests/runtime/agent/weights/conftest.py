import pytest

from rose.runtime.agent.weights import relays
from tests.runtime.coserving.hand_made_engine import engines_closed  # noqa: F401 - a fixture


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(relays, "is_here", lambda _url: False)
