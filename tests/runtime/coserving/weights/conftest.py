from __future__ import annotations

import pytest

from tests.runtime.coserving.hand_made_engine import HandMadeEngine


@pytest.fixture(autouse=True)
def engines_closed(tmp_path):
    """Closes engines while `tmp_path` still exists."""
    yield
    while HandMadeEngine.open:
        HandMadeEngine.open.pop().close()
