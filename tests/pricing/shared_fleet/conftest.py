from pathlib import Path

import pytest

from rose.ledger.writer import LedgerWriter
from tests.pricing.shared_fleet.ledger import BOOK_TEXT, fleet_events


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shared") / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in fleet_events():
            writer.record(event, durable=False)
    (root.parent / "book.toml").write_text(BOOK_TEXT)
    return root
