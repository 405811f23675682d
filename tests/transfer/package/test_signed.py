"""A manifest counts only with the signature of the run's publisher, where its key is known."""

from pathlib import Path

import pytest
import torch
from aiohttp import web

from rose.ledger.files import keys
from rose.ledger.files.keys import Key
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest
from rose.transfer.package.parts import Writer
from rose.transfer.sources.sharing import cut_whole
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.relay import RelayServer
from rose.transfer.wire.server import StoreServer
from tests.transfer.made_manifests import manifest
from tests.transfer.served import Scripted, send_file
from tests.transfer.training import weights


def made_key(path: Path) -> Key:
    key = keys.load_or_make(path)
    assert key is not None
    return key


@pytest.fixture
def key(tmp_path: Path) -> Key:
    return made_key(tmp_path / "a.key")


def test_only_the_right_signature_counts(key: Key, tmp_path: Path) -> None:
    other = made_key(tmp_path / "b.key")
    signed = manifest().to_bytes(key)
    assert Manifest.from_bytes(signed) == Manifest.from_bytes(signed, signer=key.public) == manifest()
    end = signed.index(b"\n")
    odd = signed[: end - 1] + bytes([signed[end - 1] ^ 1]) + signed[end:]
    moved = signed[:end].partition(b" ")[2]
    newer = manifest(9, 8).to_bytes()
    for data in (manifest().to_bytes(), manifest().to_bytes(other), odd, newer[:64] + b" " + moved + newer[64:]):
        with pytest.raises(TransferError, match=f"expected the signature of {key.public}"):
            Manifest.from_bytes(data, signer=key.public)
    with pytest.raises(TransferError, match="fails its own SHA-256"):
        Manifest.from_bytes(signed[:64] + b" " * 200 + signed[64:])


def test_every_package_of_a_store_is_signed_and_no_other_is_staged(key: Key, tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store", anchor_every=2, run_id="a", key=key)
    for version in range(5):
        store.publish(version, weights(version))
    assert {package.base_version is None for package in store.packages()} == {True, False}
    with StoreServer(store) as server:
        for version, have in ((4, 2), (4, 3), (4, None)):
            receiver = Receiver(server.url, None, tmp_path / "staging", run_id="a", signer=key.public)
            assert receiver.fetch(version, have).version == 4
        stranger = made_key(tmp_path / "b.key").public
        for staging in ("staging", "empty"):
            with pytest.raises(TransferError, match="signed by another key"):
                Receiver(server.url, None, tmp_path / staging, run_id="a", signer=stranger).fetch(4, None)
        assert not list((tmp_path / "empty").glob("0*"))
        with pytest.raises(TransferError, match="is of run 'a', expected one of no run"):
            Receiver(server.url, None, tmp_path / "third").fetch(4, None)


def test_the_last_of_several_ranks_signs(key: Key, tmp_path: Path) -> None:
    both = {"a": torch.ones(4), "b": torch.ones(5)}
    for rank, name in enumerate(both):
        store = VersionStore(tmp_path / "store", key=key)
        store.publish_part(0, Writer(rank, 2), cut_whole({name: both[name]}))
    receiver = Receiver((tmp_path / "store").as_uri(), None, tmp_path / "staging", signer=key.public)
    assert {info.name for info in receiver.fetch(0, None).manifests[0].tensors} == set(both)


def test_a_relay_keeps_no_manifest_that_is_not_signed(key: Key, tmp_path: Path) -> None:
    """As somebody on the way may answer once, with chunks that the origin has, and the tag of its manifest."""
    folder = tmp_path / "store"
    VersionStore(folder, key=key).publish(0, weights(0))
    sound = (folder / "00000000-anchor.json").read_bytes()
    forgeries = [Manifest.from_bytes(sound).to_bytes()]

    async def send_manifest(request: web.Request, path: Path) -> web.StreamResponse:
        if request.method == "HEAD" or not forgeries:
            return await send_file(request, path)
        return web.Response(body=forgeries.pop())

    scripted = Scripted(folder)
    scripted.send_manifest = send_manifest
    with scripted.served() as origin, RelayServer(origin, tmp_path / "c", 1 << 30, signer=key.public) as relay:
        with pytest.raises(TransferError, match="answered 422"):
            Receiver(relay.url, None, tmp_path / "first").fetch(0, None)
        assert Receiver(relay.url, None, tmp_path / "second", signer=key.public).fetch(0, None).version == 0
