from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rose.pricing.closing.period import Period
from rose.pricing.closing.restate import restate
from tests.pricing.closing.conftest import (
    BOOK_TOML,
    DAY_NS,
    DEARER,
    T0_NS,
    close,
    closed,
    closed_made,
    fleet,
    fleet_made,
    weeks,
    weeks_made,
)  # fmt: skip

__all__ = ["closed", "closed_made", "fleet", "fleet_made", "weeks", "weeks_made"]

CLOSE_ID = "2026-06-01-to-2026-06-08-live-1"


@pytest.fixture(scope="session")
def half_closed_made(weeks_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    root = Path(shutil.copytree(weeks_made, folder / "ledger"))
    (folder / "book.toml").write_text(BOOK_TOML)
    week = Period(T0_NS, T0_NS + 7 * DAY_NS)
    close(root, week, now_us=(T0_NS + 21 * DAY_NS) // 1000)
    assert restate(root, CLOSE_ID, "contract 18", DEARER, now_us=(T0_NS + 22 * DAY_NS) // 1000)
    return folder


@pytest.fixture
def half_closed(half_closed_made: Path, tmp_path: Path) -> Path:
    """A folder with `weeks` as `ledger`, its first seven days closed and corrected to a dearer price, and `book.toml`.

    A day costs $86.40, corrected $95.04.
    """
    return Path(shutil.copytree(half_closed_made, tmp_path / "half"))
