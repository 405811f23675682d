from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.adversary import histories
from tests.ledger.adversary.histories import Place


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    with histories.in_memory() as home:
        yield Place(home)


@pytest.fixture
def root(place: Place) -> Iterator[Path]:
    with place.copied() as root:
        yield root


@pytest.fixture(scope="session")
def figures(place: Place) -> Any:
    """What every view has before anything is done."""
    with place.copied() as root:
        return histories.figures_of(root)
