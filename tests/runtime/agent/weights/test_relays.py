import os
import shutil

import pytest
import torch

from rose.runtime.agent.weights import relays
from rose.runtime.agent.weights.relays import Relays, is_here
from rose.runtime.agent.weights.sync import Target
from rose.transfer.errors import TransferError
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.origin_rules import ANYWHERE
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer


@pytest.fixture
def made(tmp_path):
    running = Relays(tmp_path / "relays", 1 << 24, lambda url: f"to {url}", ANYWHERE)
    yield running
    running.stop()
    assert list(tmp_path.glob("relays/*")) == []


@pytest.fixture
def origin(tmp_path):
    store = VersionStore(tmp_path / "store", run_id="a")
    store.publish(0, {"w": torch.arange(4096.0)})
    with StoreServer(store, token="token-of-the-run") as server:
        yield Target("a", 0, server.url, "token-of-the-run")


@pytest.mark.usefixtures("elsewhere")
def test_what_is_published_elsewhere_comes_by_one_relay_for_all_with_a_token_of_its_own(made, origin, tmp_path):
    way = made.via(origin)
    assert made.via(Target("a", 1, origin.url, origin.token)).url == way.url
    assert (way.run_id, way.version, way.source, way.route) == ("a", 0, "relay", f"to {origin.url}")
    assert way.url != origin.url
    assert "token-of-the-run" not in (way.token, repr(way))
    for name in ("one", "two"):
        assert Receiver(way.url, way.token, tmp_path / name, run_id="a").fetch(0, None).manifests[-1].version == 0
    with pytest.raises(TransferError, match="401"):
        Receiver(way.url, None, tmp_path / "three", run_id="a").fetch(0, None)


@pytest.mark.parametrize("url", ["not a url", "http://host:port", "http://[::1"])
def test_what_is_no_url_of_an_origin_is_refused_as_one_that_is_away(made, url):
    with pytest.raises(TransferError, match=r"^url is "):
        made.via(Target("a", 0, url))


@pytest.mark.usefixtures("elsewhere")
def test_relays_of_origins_that_nobody_asks_for_any_more_end(made, monkeypatch):
    monkeypatch.setattr(relays, "RELAYS_MAX", 2)
    ways = [made.via(Target("a", 0, f"http://192.0.2.{number}:1")) for number in (1, 2, 1, 3)]
    assert ways[0].url == ways[2].url
    assert len(made._relays) == 2
    assert {url for url, *_ in made._relays} == {"http://192.0.2.1:1", "http://192.0.2.3:1"}


def left_by_killed(folder, name, at_s):
    (folder / name).mkdir(parents=True)
    for file in ("lock", "0" * 64):
        (folder / name / file).touch()
    os.utime(folder / name, (at_s, at_s))


@pytest.mark.usefixtures("elsewhere")
def test_what_killed_processes_left_counts_among_the_relays_and_the_oldest_of_it_goes(made, tmp_path, monkeypatch):
    monkeypatch.setattr(relays, "RELAYS_MAX", 2)
    folder = tmp_path / "relays"
    for at_s, name in enumerate(["oldest", "older", "newest", "old"]):
        left_by_killed(folder, name, at_s if name != "newest" else 9)
    made.via(Target("a", 0, "http://192.0.2.1:1"))
    (own,) = {path.name for path in folder.iterdir()} - {"newest"}
    made.via(Target("a", 0, "http://192.0.2.2:1"))
    assert own in {path.name for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 2
    assert not (folder / "newest").exists()


def fetched(relays, origin, folder):
    way = relays.via(origin)
    Receiver(way.url, way.token, folder, run_id="a").fetch(0, None)
    ((relay, _),) = relays._relays.values()
    return relay.origin.received_bytes


@pytest.mark.usefixtures("elsewhere")
def test_what_a_killed_process_had_of_an_origin_is_gone_on_with(made, origin, tmp_path):
    before = Relays(tmp_path / "before", 1 << 24, lambda _url: "", ANYWHERE)
    bytes_before = fetched(before, origin, tmp_path / "one")
    shutil.copytree(tmp_path / "before", tmp_path / "relays")
    before.stop()
    # A manifest is fetched anew: a trainer that begins anew uses the same names.
    assert fetched(made, origin, tmp_path / "two") < bytes_before


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
