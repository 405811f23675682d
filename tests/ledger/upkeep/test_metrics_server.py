from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rose.ledger.address import OpenAddressError
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import metrics_server
from rose.ledger.writer import LedgerWriter
from rose.private_files import SecretError

TOKEN = "token-of-the-tests"
Answer = tuple[int, str]


@pytest.fixture
def root(tmp_path: Path, lease: Any) -> Path:
    with LedgerWriter.open(tmp_path / "ledger", "w", "r") as writer:
        writer.record(lease(device_id="d"))
    return tmp_path / "ledger"


def ask(url: str, method: str = "GET", path: str | None = None, **headers: str) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request(method, path or parts.path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture
def url(root: Path) -> Iterator[str]:
    with metrics_server.serve(root, "127.0.0.1", 0, None) as found:
        yield found


def test_a_scrape_is_valid_exposition(url: str) -> None:
    status, text = ask(url)
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (sample,) = families["rose_ledger_events"].samples
    assert (sample.labels, sample.value) == ({"writer": "w"}, 1)
    assert families["rose_leases_granted"].samples[0].labels == {"provenance": "live", "device": "d"}


def test_many_scrapers_at_once_are_answered_alike(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(url), range(16)))
    assert len(set(answers)) == 1
    assert answers[0][0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", None, 405), ("PUT", None, 405), ("HEAD", None, 405), ("GET", "/", 404), ("GET", "/metrics/../x", 404)],
)
def test_nothing_else_is_answered(url: str, method: str, path: str | None, status: int) -> None:
    assert ask(url, method, path)[0] == status


def test_a_token_keeps_strangers_out(root: Path) -> None:
    with metrics_server.serve(root, "127.0.0.1", 0, TOKEN) as url:
        assert ask(url)[0] == 401
        assert ask(url, Authorization="Bearer wrong")[0] == 401
        assert ask(url, Authorization=TOKEN)[0] == 401
        assert ask(url, Authorization="Bearer t\xf6ken-of-the-tests")[0] == 401
        assert ask(url, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_web_page_is_refused_and_a_scraper_is_not(root: Path) -> None:
    with metrics_server.serve(root, "127.0.0.1", 0, None) as url:
        here = urlsplit(url).netloc
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            assert ask(url, **headers)[0] == 403
        for headers in ({}, {"Host": "localhost"}, {"Origin": f"http://{here}"}):
            assert ask(url, **headers)[0] == 200


def test_other_machines_need_a_token(root: Path) -> None:
    for host in ("0.0.0.0", "::", "example.org"):
        with pytest.raises(OpenAddressError, match="can be reached from other machines"):
            with metrics_server.serve(root, host, 0, None):
                pass
        with pytest.raises(SecretError, match="has 5 characters and needs 16"):
            with metrics_server.serve(root, host, 0, "short"):
                pass
    with metrics_server.serve(root, "0.0.0.0", 0, TOKEN) as url:
        assert ask(url.replace("0.0.0.0", "127.0.0.1"), Authorization=f"Bearer {TOKEN}")[0] == 200


def test_an_address_that_is_taken_is_named(root: Path, url: str) -> None:
    port = urlsplit(url).port or 0
    with pytest.raises(LedgerError, match=f"cannot listen on 127.0.0.1:{port}"):
        with metrics_server.serve(root, "127.0.0.1", port, None):
            pass


def test_a_ledger_that_cannot_be_read_is_said_to_be_unavailable(root: Path, url: str) -> None:
    for path in root.glob("live/w/*/*.parquet"):
        path.write_bytes(b"damaged")
    status, text = ask(url)
    assert status == 503
    assert str(root) in text


def test_a_client_that_says_nothing_holds_up_nobody(url: str) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)):
        assert ask(url)[0] == 200


def test_it_ends_with_the_block(root: Path) -> None:
    before: Callable[[], int] = threading.active_count
    count = before()
    with metrics_server.serve(root, "127.0.0.1", 0, None) as url:
        assert ask(url)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(url)
    assert before() == count
