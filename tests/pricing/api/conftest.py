from __future__ import annotations

import json
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.api import server
from rose.pricing.api.ledgers import named
from rose.pricing.api.work import Limits
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
        return self.json["data"]


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    url: str

    def get(
        self,
        path: str,
        *,
        headers: dict[str, str] | None = None,
        method: str = "GET",
        context: ssl.SSLContext | None = None,
        **parameters: Any,
    ) -> Answer:
        query = urllib.parse.urlencode(parameters)
        request = urllib.request.Request(f"{self.url}{path}?{query}", headers=headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=280, context=context) as response:
                return Answer(response.status, response.read().decode(), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode(), dict(error.headers))


Serve = Callable[..., Served]


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.toml"
    path.write_text(BOOK_TOML)
    return str(path)


@pytest.fixture(scope="module")
def asked_fleet(fleet_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server of `fleet`, an hour later than NOW_NS, for many questions."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "book.toml").write_text(BOOK_TOML)
    root = shutil.copytree(fleet_made, folder / "ledger")
    ledgers = named([str(root)], str(folder / "book.toml"))
    with server.serve(ledgers, "127.0.0.1", 0, limits=Limits(timeout_s=250), clock=lambda: NOW_NS + HOUR_NS) as url:
        yield Served(url)


@pytest.fixture
def serve(book: str) -> Iterator[Serve]:
    """Starts servers of ledgers, which end with the test."""
    with ExitStack() as servers:

        def start(
            *roots: Path | str,
            now_ns: int = NOW_NS,
            price_book: str | None = book,
            allow_unverified: bool = False,
            host: str = "127.0.0.1",
            **options: Any,
        ) -> Served:
            # A busy machine is no reason to fail.
            options = {"limits": Limits(timeout_s=250)} | options
            ledgers = named([str(root) for root in roots], price_book, allow_unverified=allow_unverified)
            return Served(servers.enter_context(server.serve(ledgers, host, 0, clock=lambda: now_ns, **options)))

        yield start
