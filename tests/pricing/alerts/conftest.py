from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.alerts.message import Message, Section
from tests.pricing.alerts.servers import Web, web

MESSAGE = Message(
    message_id="5f0c" * 8,
    channel="c",
    kind="firing",
    key="budgets/2026-05/research/spent",
    title="<b>research</b> has spent 80%",
    sentences=("Team <img src=x onerror=alert(1)> & co.",),
    at_us=1_780_000_000_000_000,
    provenance="live",
    level=800,
    sections=(Section(title="By team", columns=("team", "cost"), rows=(("=HYPERLINK(1)", "$1.00"),)),),
)


@pytest.fixture
def message() -> Message:
    return MESSAGE


@pytest.fixture
def hook() -> Iterator[Web]:
    with web() as made:
        yield made


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("correct horse\n")
    return path


@pytest.fixture
def webhook_channel(hook: Web, secret_file: Path) -> dict[str, Any]:
    return {"kind": "webhook", "name": "c", "url": f"{hook.url}/rose", "secret_file": str(secret_file)}
