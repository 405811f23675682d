from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

from rose.runtime.transfer.server import StoreServer
from rose.runtime.transfer.store import VersionStore


def get(url: str, token: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(tmp_path / "store")
    store.publish(0, {"w": torch.ones(10)})
    (tmp_path / "secret.json").write_text("{}")
    return store


def test_serves_what_the_store_holds_and_sees_new_versions(store: VersionStore) -> None:
    with StoreServer(store) as server:
        status, body = get(f"{server.url}/v1/packages")
        size = (store.folder / "00000000-anchor.bin").stat().st_size
        assert status == 200
        assert json.loads(body) == {"packages": [{"version": 0, "base_version": None, "blob_bytes": size}]}
        store.publish(1, {"w": torch.full((10,), 2.0)})
        assert len(json.loads(get(f"{server.url}/v1/packages")[1])["packages"]) == 2
        for kind in ("json", "bin"):
            name = f"00000001-from-00000000.{kind}"
            assert get(f"{server.url}/v1/packages/{name}") == (200, (store.folder / name).read_bytes())


def test_only_packages_can_be_read(store: VersionStore) -> None:
    with StoreServer(store) as server:
        for path in (
            "00000009-anchor.bin",
            "..%2Fsecret.json",
            "%2e%2e/secret.json",
            "00000000-anchor.bin.tmp",
            "x.json",
        ):
            assert get(f"{server.url}/v1/packages/{path}")[0] == 404


def test_a_token_is_needed_for_everything(store: VersionStore) -> None:
    with StoreServer(store, token="right") as server:
        for path in ("/v1/packages", "/v1/packages/00000000-anchor.bin"):
            assert get(server.url + path)[0] == 401
            assert get(server.url + path, "wrong")[0] == 401
            assert get(server.url + path, "right")[0] == 200


def test_other_hosts_need_a_token(store: VersionStore) -> None:
    with pytest.raises(ValueError, match=r"'0\.0\.0\.0' is reachable from other machines"):
        StoreServer(store, host="0.0.0.0")


def test_a_taken_port_raises_and_stop_frees_it(store: VersionStore) -> None:
    with StoreServer(store) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="address already in use"):
            StoreServer(store, port=port).start()
    with StoreServer(store, port=port) as server:
        assert get(f"{server.url}/v1/packages")[0] == 200
