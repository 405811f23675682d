import pytest

from tests.runtime.agent.scripted_gateway import ScriptedGateway


@pytest.fixture
def gateway():
    with ScriptedGateway() as running:
        yield running
