import pytest

from rose.runtime.coserving.weights import relays
from tests.runtime.coserving.hand_made_engine import HandMadeEngine


@pytest.fixture(autouse=True)
def engines_closed(tmp_path):
    """Closes engines while `tmp_path` still exists."""
    yield
    while HandMadeEngine.open:
        HandMadeEngine.open.pop().close()


@pytest.fixture
def elsewhere(monkeypatch):
    """All that is published is on another host, as far as relays know."""
    monkeypatch.setattr(relays, "is_here", lambda _url: False)
