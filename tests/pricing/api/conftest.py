import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rose.pricing.api import app
from rose.pricing.api.questions import ServedLedger, named
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, HOUR_NS, T0_NS

#: Two days after the hour that `fleet` worked.
NOW_NS = T0_NS + 2 * DAY_NS
HOUR = "2026-06-01T00"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def data(self) -> Any:
        assert self.status == 200, self.text
        return self.json


class Served:
    def __init__(self, ledgers: list[ServedLedger], now_ns: int = NOW_NS, token: str | None = None) -> None:
        application = app.application(ledgers, token=token, clock=lambda: now_ns)
        self._client = TestClient(application, base_url="http://127.0.0.1", raise_server_exceptions=False)

    def get(
        self, path: str, *, headers: dict[str, str] | None = None, method: str = "GET", **parameters: Any
    ) -> Answer:
        encoded = {name: text.encode() for name, text in (headers or {}).items()}
        answer = self._client.request(method, path, params=parameters or None, headers=encoded)
        return Answer(answer.status_code, answer.text, dict(answer.headers))


Serve = Callable[..., Served]


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.toml"
    path.write_text(BOOK_TOML)
    return str(path)


@pytest.fixture(scope="session")
def quiet_folder(fleet_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`fleet` as `ledger` and its `book.toml`, for tests that only ask."""
    folder = tmp_path_factory.mktemp("quiet")
    (folder / "book.toml").write_text(BOOK_TOML)
    shutil.copytree(fleet_made, folder / "ledger")
    return folder


@pytest.fixture(scope="session")
def quiet_fleet(quiet_folder: Path) -> Served:
    return Served(named([str(quiet_folder / "ledger")], str(quiet_folder / "book.toml")), NOW_NS + HOUR_NS)


@pytest.fixture
def serve(book: str) -> Serve:
    def start(
        *roots: Path | str, now_ns: int = NOW_NS, price_book: str | None = book, token: str | None = None
    ) -> Served:
        return Served(named([str(root) for root in roots], price_book), now_ns, token)

    return start
