from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rose.ledger import layout, segments
from rose.ledger.evidence import links, proof, recent
from rose.ledger.evidence.recent import LINK, Recent
from rose.ledger.hosts import gateway
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.hosts.remote import Gateway
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=2, per_epoch=3)
    return made


def _headers(root: Path) -> list[segments.Header]:
    return [segments.read_header((root / link.path).read_bytes()) for link in links.back(root, "a")][::-1]


def test_it_knows_what_the_files_say(root: Path) -> None:
    noted = Recent()
    headers = _headers(root)
    for header in headers:
        noted.note(header)
    newest = headers[-1].chain_sha256
    for number, header in enumerate(headers):
        since = noted.since("a", header.last_seq + 1, header.chain_sha256, newest)
        assert since == proof._read(root, "a", header.last_seq + 1, header.chain_sha256, newest)
        assert len(since or b"") == LINK.size * (len(headers) - number - 1)
    assert noted.since("a", headers[2].last_seq + 1, headers[2].chain_sha256, headers[1].chain_sha256) is None
    assert noted.since("a", 0, "", newest) is None
    assert noted.since("b", 0, "", newest) is None


def test_what_it_did_not_hear_of_is_not_known(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = _headers(root)
    noted = Recent()
    for header in (*headers[:2], *headers[4:]):
        noted.note(header)
    newest = headers[-1].chain_sha256
    assert noted.since("a", headers[1].last_seq + 1, headers[1].chain_sha256, newest) is None
    assert noted.since("a", headers[4].last_seq + 1, headers[4].chain_sha256, newest) is not None
    monkeypatch.setattr(recent, "_LINKS_MAX", 3)
    noted = Recent()
    for header in headers:
        noted.note(header)
    assert noted.since("a", headers[-3].last_seq + 1, headers[-3].chain_sha256, newest) is not None
    assert noted.since("a", headers[-4].last_seq + 1, headers[-4].chain_sha256, newest) is None


def test_a_gateway_answers_from_what_came_through_it(root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    with gateway.serve(tmp_path / "centre", "127.0.0.1", 0, token=None) as url, Gateway(url) as client:
        forwarder = Forwarder(root, url, token=None)
        forwarder.once()
        first = proof.read(client.receipt(proof.question({})))
        ledgers.write(root, "a", epochs=2)
        assert forwarder.once().segments == 5
        forwarder.stop()
        monkeypatch.setattr(links, "back", None)
        asked = {"a": first.receipt.writers["a"]}
        second = proof.read(client.receipt(proof.question(asked)))
    packed = second.links["a"]
    assert packed is not None
    assert len(packed) == 5 * LINK.size
    assert proof.leads("a", asked["a"], packed, second.receipt.writers["a"])
