from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rose.events import Ledger
from rose.ledger.writer import LedgerWriter

#: Within the block what is done is done under the key of that name.
As = Callable[[str], Any]


@pytest.fixture
def root(tmp_path: Path, lease: Any, identity: As) -> Path:
    """A ledger with one event."""
    with LedgerWriter.open(tmp_path / "ledger", "w", "r") as writer:
        writer.record(lease())
    return tmp_path / "ledger"


def by_hand(root: Path, action: str, detail: Any) -> None:
    """An event of the writer `controls` that no command wrote."""
    text = detail if isinstance(detail, str) else json.dumps(detail)
    with LedgerWriter.open(root, "controls", "ledger") as writer:
        writer.record(Ledger(action=action, detail_json=text), durable=True)
