import pytest

from tests.ledger.adversary import histories
from tests.ledger.adversary.histories import Place


@pytest.fixture(scope="session")
def place():
    with histories.in_memory() as home:
        yield Place(home)


@pytest.fixture
def root(place):
    with place.copied() as root:
        yield root


@pytest.fixture(scope="session")
def figures(place):
    with place.copied() as root:
        return histories.figures_of(root)
