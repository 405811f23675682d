import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where fsync costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)
