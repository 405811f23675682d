import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from benchmarks.transfer.throttle import Throttle
from rose.transfer.codec.choice import LINK
from rose.transfer.package.manifest import Package, index_bytes
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.origin import Route
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.relay import RelayServer
from rose.transfer.wire.server import StoreServer
from tests.transfer.served import until
from tests.transfer.training import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> VersionStore:
    store = VersionStore(tmp_path / "store", anchor_every=1, anchors_kept=1, now=clock)
    store.publish(0, {"w": torch.ones(10)})
    return store


def ask(url: str, method: str = "GET", body: Any = None, token: str | None = None, **headers: str) -> tuple[int, bytes]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def chunk_of(store: VersionStore) -> str:
    return store.manifest(store.packages()[0]).chunks[0].sha256


def test_versions_are_encoded_for_the_slowest_link_that_a_receiver_measured(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    store.publish(0, {"w": torch.randn(1 << 18)})
    assert store.link == LINK
    with StoreServer(store) as server, RelayServer(server.url, tmp_path / "cache", 1 << 30) as relay:
        for url, bytes_per_s in ((server.url, 4e6), (relay.url, 8e6)):
            Receiver(url, None, tmp_path / f"{bytes_per_s}", pace=Throttle(bytes_per_s).wait).fetch(0, None)
        until(lambda: not list((store.folder / "pins").iterdir()))
        assert 0 < store.link.bytes_per_s < 7e6
        for wrong in ("0", "-1", "nan", "1e9", "9" * 14, ""):
            assert ask(f"{server.url}/v1/pins/{'a' * 32}?bytes_per_s={wrong}", "DELETE")[0] == 400
        assert ask(f"{server.url}/v1/pins/{'a' * 32}?bytes_per_s=1000", "DELETE")[0] == 200
        assert store.link.bytes_per_s == 1000


def test_serves_what_the_store_holds_and_sees_new_versions(store: VersionStore) -> None:
    with StoreServer(store) as server:
        assert ask(f"{server.url}/v1/packages") == (200, index_bytes(store.packages()))
        store.publish(1, {"w": torch.full((10,), 2.0)})
        assert ask(f"{server.url}/v1/packages") == (200, (store.folder / "index.json").read_bytes())
        (package,) = store.packages()
        assert package.version == 1
        name = f"{package.stem}.json"
        assert ask(f"{server.url}/v1/packages/{name}") == (200, (store.folder / name).read_bytes())
        sha256 = chunk_of(store)
        content = (store.folder / "chunks" / sha256[:2] / sha256).read_bytes()
        url = f"{server.url}/v1/chunks/{sha256}"
        assert ask(url) == (200, content)
        assert ask(url, Range="bytes=5-") == (206, content[5:])
        assert ask(url, Range=f"bytes={len(content)}-")[0] == 416


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = VersionStore(tmp_path_factory.mktemp("served") / "store")
    store.publish(0, {"w": torch.ones(10)})
    (store.folder.parent / "secret.json").write_text("{}")
    with StoreServer(store) as server:
        yield f"{server.url}/v1"


@pytest.mark.parametrize(
    "path",
    [
        "packages/00000009-anchor.json",
        "packages/..%2Fsecret.json",
        "packages/%2e%2e/secret.json",
        "packages/x.json",
        "chunks/..%2f..%2fsecret.json",
        f"chunks/{'0' * 64}",
        f"chunks/{'A' * 64}",
        "pins",
    ],
)
def test_only_packages_and_chunks_can_be_read(url: str, path: str) -> None:
    assert ask(f"{url}/{path}")[0] in (404, 405)


def test_a_pin_keeps_a_way_until_it_is_let_go_of_or_expires(store: VersionStore, clock: Clock) -> None:
    first = Package(0, None)
    with StoreServer(store, pin_ttl_s=60) as server:
        routes = []
        for _ in range(2):
            status, body = ask(f"{server.url}/v1/pins", "POST", {"version": 0, "have": None})
            assert status == 200
            routes.append(Route.from_bytes(body))
            assert (routes[-1].packages, routes[-1].ttl_s) == ((first,), 60)
        store.publish(1, {"w": torch.zeros(10)})
        assert ask(f"{server.url}/v1/pins/{routes[0].pin}", "DELETE")[0] == 200
        clock.now_s += 59
        assert ask(f"{server.url}/v1/pins/{routes[1].pin}", "PUT")[0] == 200
        clock.now_s += 59
        store.prune()
        assert first in store.packages()
        clock.now_s += 2
        store.prune()
        assert first not in store.packages()
        status, why = ask(f"{server.url}/v1/pins/{routes[1].pin}", "PUT")
        assert (status, b"has expired" in why) == (422, True)
        assert ask(f"{server.url}/v1/pins", "POST", {"version": 0, "have": 5}) == (
            422,
            b"no way from version 5 to version 0: the store holds versions [1]",
        )


def test_an_acknowledgement_is_noted_only_if_the_hash_is_that_of_the_version(store: VersionStore) -> None:
    sha256 = store.manifest(Package(0, None)).weights_sha256
    with StoreServer(store) as server:

        def acknowledge(version: int, weights_sha256: str) -> tuple[int, bytes]:
            body = {"receiver": "engine-0", "version": version, "weights_sha256": weights_sha256}
            return ask(f"{server.url}/v1/acks", "POST", body)

        status, why = acknowledge(0, "0" * 64)
        assert status == 409
        assert f"engine-0' holds weights {'0' * 64} as version 0, expected {sha256}: it has drifted".encode() in why
        assert acknowledge(7, sha256) == (404, b"the store holds no version 7")
        assert not list((store.folder / "acks").iterdir())
        assert acknowledge(0, sha256) == (200, b"")
        (noted,) = (store.folder / "acks").iterdir()
        assert json.loads(noted.read_bytes())["version"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("pins", b"{"),
        ("pins", []),
        ("pins", b"[" * 100_000),
        ("pins", b"\xff"),
        ("pins", {}),
        ("pins", {"version": True}),
        ("pins", {"version": -1}),
        ("pins", {"version": 1 << 63}),
        ("pins", {"version": "0"}),
        ("pins", {"version": 0, "have": 0.5}),
        ("acks", {"receiver": "../../x", "version": 0, "weights_sha256": "0" * 64}),
        ("acks", {"receiver": "x" * 129, "version": 0, "weights_sha256": "0" * 64}),
        ("acks", {"receiver": "x", "version": 0, "weights_sha256": "0"}),
        ("acks", {"receiver": "x", "version": None, "weights_sha256": "0" * 64}),
        ("acks", {"receiver": ["x"], "version": 0, "weights_sha256": "0" * 64}),
    ],
)
def test_a_body_that_says_nothing_is_refused(url: str, path: str, body: Any) -> None:
    assert ask(f"{url}/{path}", "POST", body)[0] == 400


@pytest.mark.parametrize("encoding", ["gzip", "br", "nonsense"])
def test_a_body_that_is_not_packed_as_it_says_is_refused(url: str, encoding: str) -> None:
    status, _ = ask(f"{url}/pins", "POST", b"\x1f\x8bnothing", **{"Content-Encoding": encoding})
    assert 400 <= status < 500


def test_a_token_is_needed_for_everything(store: VersionStore) -> None:
    with StoreServer(store, token="the-right-token-of-it") as server:
        for path in ("packages", "packages/00000000-anchor.json", f"chunks/{chunk_of(store)}"):
            url = f"{server.url}/v1/{path}"
            assert ask(url)[0] == 401
            assert ask(url, token="wrong")[0] == 401
            assert ask(url, token="the-right-token-of-it")[0] == 200
        for method, path in (("POST", "pins"), ("PUT", "pins/a"), ("DELETE", "pins/a"), ("POST", "acks")):
            assert ask(f"{server.url}/v1/{path}", method)[0] == 401
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        connection.putrequest("GET", "/v1/packages")
        connection.putheader("Authorization", b"Bearer \xff\xc3\xa9")
        connection.endheaders()
        assert connection.getresponse().status == 401
        connection.close()


def test_a_web_page_may_ask_for_nothing(store: VersionStore) -> None:
    with StoreServer(store) as server:
        url, here = f"{server.url}/v1/packages", urlsplit(server.url).netloc
        for host in ("evil.example", f"{here}.evil.example", "0.0.0.0"):
            assert ask(url, Host=host)[0] == 403
        for method, path in (("POST", "pins"), ("GET", "packages"), ("POST", "acks")):
            assert ask(f"{server.url}/v1/{path}", method, Origin="http://evil.example")[0] == 403
        assert ask(url, Host=f"localhost:{here.rpartition(':')[2]}")[0] == 200
        assert ask(url, Origin=server.url)[0] == 200
    with StoreServer(store, token="token-of-the-store") as server:
        sent = {"token": "token-of-the-store", "Host": "store.example"}
        assert ask(f"{server.url}/v1/packages", **sent)[0] == 200
        assert ask(f"{server.url}/v1/pins/a", "DELETE", **sent, Origin="http://evil.example")[0] == 403
