from tests.runtime.coserving.hand_made_engine import engines_closed  # noqa: F401 - a fixture
