from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dashboard import trust
from rose.ledger import verify

PAGES = ("overview", "fleet", "cost", "cost_per_correct", "bill", "books", "risk")


@pytest.fixture
def damaged(ended: Path, tmp_path: Path) -> Path:
    """A ledger of which a byte was overwritten, its size and name as they were."""
    root = shutil.copytree(ended, tmp_path / "ledger")
    segment = max(root.glob("live/**/*.parquet"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    return root


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_up_to_when_the_ledger_is_verified(
    page: str, ended: Path, open_page: Any, page_text: Any
) -> None:
    app = open_page(ended, page)
    assert not app.exception
    assert "verified to " in page_text(app)
    assert "0 problems" in page_text(app)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_page_says_that_a_ledger_was_tampered_with(
    page: str, damaged: Path, open_page: Any, page_text: Any
) -> None:
    app = open_page(damaged, page)
    assert not app.exception
    assert "This ledger does not verify" in page_text(app)
    assert "not to be trusted" in page_text(app)
    assert "0 problems" not in page_text(app)


@pytest.mark.long
def test_no_verdict_of_a_ledger_that_does_not_verify_stands_alone(
    damaged: Path, open_page: Any, page_text: Any
) -> None:
    assert "by a ledger that does not verify" in page_text(open_page(damaged, "fleet"))


def test_what_was_never_verified_is_not_called_sound(ended: Path, tmp_path: Path) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    shutil.rmtree(root / "verified", ignore_errors=True)
    assert trust.known(root).text == "never verified"
    verify.verify(root)
    assert trust.known(root).text.startswith("not verified since ")
    assert trust.look(root).text.endswith("0 problems")
    assert trust.look(root).colour == "green"


def test_a_folder_that_is_no_ledger_is_said(tmp_path: Path) -> None:
    found = trust.look(tmp_path / "none")
    assert found.problems is None
    assert "is not a ledger" in found.why
