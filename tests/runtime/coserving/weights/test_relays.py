"""Relays of a host, with origins at several of its addresses."""

from __future__ import annotations

import pytest
import torch

from rose.runtime.coserving.weights import relays
from rose.runtime.coserving.weights.relays import Relays, is_here
from rose.runtime.coserving.weights.target import Target
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.store.store import VersionStore
from rose.runtime.transfer.wire.receiver import Receiver
from rose.runtime.transfer.wire.server import StoreServer


@pytest.fixture
def made(tmp_path):
    running = Relays(tmp_path / "relays", 1 << 24, lambda url: f"to {url}")
    yield running
    running.stop()
    assert list(tmp_path.glob("relays/*")) == []


@pytest.fixture
def origin(tmp_path):
    store = VersionStore(tmp_path / "store", run_id="a")
    store.publish(0, {"w": torch.arange(4096.0)})
    with StoreServer(store, token="of-the-run") as server:
        yield Target("a", 0, server.url, "of-the-run")


def test_what_is_published_here_is_fetched_from_there(made, origin):
    way = made.via(origin)
    assert (way.url, way.token, way.source, way.route) == (origin.url, "of-the-run", "trainer", "loopback")


def test_what_is_published_elsewhere_comes_by_one_relay_for_all_with_a_token_of_its_own(
    made, origin, tmp_path, monkeypatch
):
    monkeypatch.setattr(relays, "is_here", lambda _url: False)
    way = made.via(origin)
    assert made.via(Target("a", 1, origin.url, origin.token)).url == way.url
    assert (way.run_id, way.version, way.source, way.route) == ("a", 0, "relay", f"to {origin.url}")
    assert way.url != origin.url
    assert "of-the-run" not in (way.token, repr(way))
    for name in ("one", "two"):
        assert Receiver(way.url, way.token, tmp_path / name, run_id="a").fetch(0, None).manifests[-1].version == 0
    with pytest.raises(TransferError, match="401"):
        Receiver(way.url, None, tmp_path / "three").fetch(0, None)


def test_relays_of_origins_that_nobody_asks_for_any_more_end(made, monkeypatch):
    monkeypatch.setattr(relays, "is_here", lambda _url: False)
    monkeypatch.setattr(relays, "RELAYS_MAX", 2)
    ways = [made.via(Target("a", 0, f"http://192.0.2.{number}:1")) for number in (1, 2, 1, 3)]
    assert ways[0].url == ways[2].url
    assert len(made._relays) == 2
    assert {origin for origin, _ in made._relays} == {"http://192.0.2.1:1", "http://192.0.2.3:1"}


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.0.0.9:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://192.0.2.1:1", False),
        ("s3://bucket/folder", False),
        ("http://no-such-host.invalid:1", False),
    ],
)
def test_an_address_of_this_host_is_here(url, here):
    assert is_here(url) is here
