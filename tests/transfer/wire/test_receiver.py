import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
import torch
from aiohttp import web

from rose.transfer.apply.apply import prepare
from rose.transfer.apply.staged import Staged
from rose.transfer.errors import TransferError
from rose.transfer.layout.fused import hf_views
from rose.transfer.layout.regions import Region
from rose.transfer.package.manifest import Package
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.origin import GoneError, RefusedError
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import StoreServer
from tests.transfer.layout.test_fused import HEAD_DIM, HEADS, KV_HEADS, engine
from tests.transfer.served import (
    ELEMENTS,
    Scripted,
    contents_of,
    fetch_slowly,
    kill,
    newest,
    noise,
    process,
    put,
    remove,
    send_file,
    send_nothing,
    until,
    warm_up,
)


@pytest.fixture(scope="module", autouse=True)
def processes() -> None:
    warm_up()


def views_of(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    return hf_views(root.named_parameters(), HEADS, KV_HEADS, HEAD_DIM)


def trainer_weights(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.02 * torch.randn(view.shape, generator=generator) for name, view in views_of(engine()).items()}


def bf16(masters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(torch.bfloat16) for name, tensor in masters.items()}


def step(masters: dict[str, torch.Tensor], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in masters.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-5)


def assert_same_bits(views: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert views.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(views[name].contiguous().view(torch.int16), tensor.view(torch.int16)), name


def staged_folders(staging: Path) -> list[str]:
    return sorted(path.name for path in staging.iterdir() if path.name != "partial")


def test_store_to_engine_over_http(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store", anchor_every=3)
    masters = trainer_weights(0)
    root = engine().to(torch.bfloat16)
    address = root.get_parameter("model.layers.0.self_attn.qkv_proj.weight").data_ptr()
    with StoreServer(store, token="token-of-the-store") as server:
        receiver = Receiver(server.url, "token-of-the-store", tmp_path / "staging")
        assert newest(server.url, "token-of-the-store") is None
        have = None
        for version in range(5):
            published = store.publish(version, bf16(masters))
            assert newest(server.url, "token-of-the-store") == version
            staged = receiver.fetch(version, have)
            assert (staged.version, staged.base_version) == (version, have)
            assert staged.wire_bytes > sum(manifest.blob_bytes for manifest in staged.manifests)
            assert staged.fetch_ns > 0
            assert staged.verify_ns > 0
            prepare(staged, views_of(root)).commit()
            assert staged.manifests[-1].weights_sha256 == published[0].weights_sha256
            assert_same_bits(views_of(root), bf16(masters))
            receiver.acknowledge(version, published[0].weights_sha256)
            staged.remove()
            have = version
            step(masters, version)
        with pytest.raises(RefusedError, match=r"answered 409 Conflict: .*has drifted; bring it back from an anchor"):
            receiver.acknowledge(4, "0" * 64)
        with pytest.raises(GoneError, match="holds no version 9"):
            receiver.acknowledge(9, "0" * 64)
    assert root.get_parameter("model.layers.0.self_attn.qkv_proj.weight").data_ptr() == address
    assert staged_folders(tmp_path / "staging") == []


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[VersionStore, list[dict[str, torch.Tensor]]]:
    store = VersionStore(tmp_path_factory.mktemp("store"), anchor_every=4)
    masters = trainer_weights(1)
    versions = []
    for version in range(7):
        versions.append(bf16(masters))
        store.publish(version, versions[-1])
        step(masters, version)
    return store, versions


@pytest.mark.parametrize(("kind", "have"), [("http", None), ("http", 0), ("http", 5), ("file", None), ("s3", 2)])
def test_a_joiner_and_a_laggard_reach_the_same_bits(
    tmp_path: Path,
    published: tuple[VersionStore, list[dict[str, torch.Tensor]]],
    have: int | None,
    kind: str,
    bucket: str,
) -> None:
    store, versions = published
    views = views_of(engine().to(torch.bfloat16))
    if have is not None:
        for name, view in views.items():
            view.copy_(versions[have][name])
    if kind == "http":
        with StoreServer(store) as server:
            staged = Receiver(server.url, None, tmp_path / "staging").fetch(6, have)
    elif kind == "file":
        staged = Receiver(store.folder.as_uri(), None, tmp_path / "staging").fetch(6, have)
    else:
        url = f"{bucket}/{tmp_path.name}"
        fsspec.filesystem("s3").put(f"{store.folder}/", f"{url}/", recursive=True)
        staged = Receiver(url, None, tmp_path / "staging").fetch(6, have)
    prepare(staged, views).commit()
    assert_same_bits(views, versions[-1])


def test_what_is_staged_is_used_again_unless_it_is_damaged(tmp_path: Path) -> None:
    manifest = put(tmp_path / "store", 0, None, [b"1234", b"567"])
    receiver = Receiver((tmp_path / "store").as_uri(), None, tmp_path / "staging")
    first = receiver.fetch(0, None)
    assert first.folder == receiver.folder(0, None)
    again = receiver.fetch(0, None)
    assert again.wire_bytes == 0
    assert Staged.open(receiver.folder(0, None)).manifests == first.manifests == again.manifests
    chunk = first.folder / "chunks" / manifest.chunks[0].sha256
    for damage in (lambda: chunk.write_bytes(b"1235"), chunk.unlink):
        damage()
        assert receiver.fetch(0, None).wire_bytes > 0
        assert contents_of(receiver.fetch(0, None)) == [b"1234", b"567"]


def test_only_what_the_regions_need_is_fetched(tmp_path: Path) -> None:
    contents = [noise(seed, 1000) for seed in range(3)]
    put(tmp_path / "store", 0, None, contents)
    scripted = Scripted(tmp_path / "store")
    with scripted.served() as url:
        receiver = Receiver(url, None, tmp_path / "staging")
        for number, regions in enumerate(({"t001": Region((0,), (1,))}, {"t002": Region.whole((ELEMENTS,))}), 1):
            staged = receiver.fetch(0, None, regions)
            (chunk,) = staged.manifests[0].chunks_for(regions)
            assert staged.chunk(chunk) == contents[number]
            assert [path.name for path in (staged.folder / "chunks").iterdir()] == [chunk.sha256]
            assert receiver.fetch(0, None, regions).folder == staged.folder == receiver.folder(0, None, regions)
        assert len(staged_folders(tmp_path / "staging")) == 2
    assert sum(scripted.gets.values()) == 2 + 2


@pytest.mark.parametrize("part", ["chunk", "manifest", "index"])
@pytest.mark.parametrize("damage", ["flip", "cut", "lengthen", "remove"])
def test_a_damaged_origin_is_refused_and_stages_nothing(tmp_path: Path, part: str, damage: str) -> None:
    (chunk,) = put(tmp_path / "store", 0, None, [noise(0, 500)]).chunks
    names = {"manifest": "00000000-anchor.json", "index": "index.json"}
    path = tmp_path / "store" / names.get(part, f"chunks/{chunk.sha256[:2]}/{chunk.sha256}")
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        flipped = data[:30] + bytes([data[30] ^ 1]) + data[31:]
        path.write_bytes({"flip": flipped, "cut": data[:-1], "lengthen": data + b"\n"}[damage])
    receiver = Receiver((tmp_path / "store").as_uri(), None, tmp_path / "staging", retries=0)
    if (part, damage) == ("chunk", "lengthen"):
        assert contents_of(receiver.fetch(0, None)) == [data]  # What is behind a chunk is never asked for.
        return
    with pytest.raises(TransferError):
        receiver.fetch(0, None)
    assert staged_folders(receiver.staging) == []


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        ([], r"sent packages \(from, to\) None, expected"),
        ([(2, 0)], r"packages \(from, to\) \(0, 2\), expected \(1, 2\)"),
        ([(1, None)], r"packages \(from, to\) \(None, 1\)"),
        ([(0, None), (2, 1)], "delta from version 1 cannot follow version 0"),
    ],
)
def test_a_way_that_leads_elsewhere_is_refused(
    tmp_path: Path, packages: list[tuple[int, int | None]], says: str
) -> None:
    for version, base in ((0, None), (1, None), (2, 0), (2, 1)):
        put(tmp_path / "store", version, base, [b"1234"])
    scripted = Scripted(tmp_path / "store")
    scripted.plan = lambda *_: [p for p in scripted.packages() if (p.version, p.base_version) in packages]
    with scripted.served() as url, pytest.raises(TransferError, match=says):
        Receiver(url, None, tmp_path / "staging").fetch(2, 1)


def test_a_manifest_with_more_bytes_than_the_weights_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "store", 0, None, [bytes(2 * ELEMENTS + 1000)])
    with pytest.raises(TransferError, match=f"00000000-anchor has chunks of {2 * ELEMENTS + 1000} bytes, expected at"):
        Receiver((tmp_path / "store").as_uri(), None, tmp_path / "staging").fetch(0, None)
    assert not list((tmp_path / "staging" / "partial").glob("[0-9a-f]*"))


@pytest.mark.parametrize("sends", ["send_chunk", "send_manifest"])
def test_a_version_pruned_on_the_way_is_reached_another_way(tmp_path: Path, sends: str) -> None:
    store = tmp_path / "store"
    old = [put(store, 0, None, [noise(0, 1000)]), put(store, 1, 0, [b"2"]), put(store, 2, 1, [b"4"])]
    scripted = Scripted(store)

    async def prune(request: web.Request, path: Path) -> web.StreamResponse:
        if old:
            put(store, 2, None, [noise(1, 1000)])
            while old:
                remove(store, old.pop())
        return await send_file(request, path)

    setattr(scripted, sends, prune)
    with scripted.served() as url:
        staged = Receiver(url, None, tmp_path / "staging").fetch(2, None)
    assert [manifest.package for manifest in staged.manifests] == [Package(2, None)]
    assert contents_of(staged) == [noise(1, 1000)]
    assert staged.wire_bytes > 1000


def test_receivers_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    put(tmp_path / "store", 0, None, [noise(seed, 30_000) for seed in range(3)])
    scripted = Scripted(tmp_path / "store")
    with scripted.served() as url, ThreadPoolExecutor() as pool:
        receivers = [Receiver(url, None, tmp_path / "staging") for _ in range(4)]
        staged = list(pool.map(lambda receiver: receiver.fetch(0, None), receivers))
    assert sum(one.wire_bytes > 0 for one in staged) == 1
    assert set(scripted.gets.values()) == {1}


def test_one_chunk_that_fails_ends_the_others(tmp_path: Path) -> None:
    chunks = put(tmp_path / "store", 0, None, [noise(seed, 1000) for seed in range(4)]).chunks
    scripted = Scripted(tmp_path / "store")

    async def bad_or_stuck(request: web.Request, path: Path) -> web.StreamResponse:
        if path.name == chunks[2].sha256:
            return web.Response(status=403, text="not this one")
        return await send_nothing(request, path)

    scripted.send_chunk = bad_or_stuck
    with scripted.served() as url, pytest.raises(TransferError, match="403 Forbidden: not this one"):
        Receiver(url, None, tmp_path / "staging").fetch(0, None)


def test_a_receiver_killed_in_mid_chunk_is_continued_by_another(tmp_path: Path) -> None:
    contents = [noise(seed, 1 << 20) for seed in range(2)]
    manifest = put(tmp_path / "store", 0, None, contents)
    scripted = Scripted(tmp_path / "store")
    partial = tmp_path / "staging" / "partial"
    with scripted.served() as url:
        with process(fetch_slowly, url, tmp_path / "staging") as receiver:
            until(lambda: partial.exists() and sum(path.stat().st_size for path in partial.iterdir()) > 1 << 18)
            kill(receiver)
        came = sum(path.stat().st_size for path in partial.iterdir())
        (partial / hashlib.sha256(b"of another version").hexdigest()).write_bytes(b"x")
        staged = Receiver(url, None, tmp_path / "staging").fetch(0, None)
    assert contents_of(staged) == contents
    assert 0 < came < manifest.blob_bytes
    assert 0 < staged.wire_bytes - (manifest.blob_bytes - came) < 10_000
    assert [path.name for path in partial.iterdir()] == ["lock"]
