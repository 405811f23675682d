import asyncio
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from rose.ledger.address import OpenAddressError
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest
from rose.transfer.wire.origin import BLOCK_BYTES
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.relay import RelayServer
from tests.transfer.served import Scripted, contents_of, newest, noise, put, send_file, until

A, B = "token-of-the-first", "token-of-the-second"


def kept(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def get(url: str, chunk: str, span: str | None = None, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(f"{url}/v1/chunks/{chunk}", method=method)
    if span is not None:
        request.add_header("Range", f"bytes={span}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_many_receivers_cost_the_origin_one_fetch(tmp_path: Path) -> None:
    store = tmp_path / "store"
    contents = [noise(seed, 700_000) for seed in range(3)]
    put(store, 0, None, contents[:1] * 2)
    manifests = [put(store, 1, 0, contents[1:])]
    manifests.insert(0, Manifest.from_bytes((store / "00000000-anchor.json").read_bytes()))
    scripted = Scripted(store)
    with (
        scripted.served() as origin,
        RelayServer(origin, tmp_path / "a", 1 << 30, token=A) as first,
        RelayServer(first.url, tmp_path / "b", 1 << 30, token=B, origin_token=A) as second,
    ):

        def fetch(number: int) -> list[bytes]:
            receiver = Receiver(second.url, B, tmp_path / f"staging-{number}")
            assert newest(second.url, B) == 1
            return contents_of(receiver.fetch(1, None))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(fetch, range(8))) == [[contents[0], *contents]] * 8
        assert set(scripted.gets.values()) == {1}
        names = {chunk.sha256 for manifest in manifests for chunk in manifest.chunks}
        assert set(scripted.gets) == names | {f"{manifest.package.stem}.json" for manifest in manifests}
        once = 3 * 700_000 + sum(len(manifest.to_bytes()) for manifest in manifests)
        assert once < second.origin.received_bytes < once + 8 * 1000
        assert kept(tmp_path / "b") == once
        for wrong in (None, A):
            with pytest.raises(TransferError, match="answered 401"):
                newest(second.url, wrong)
        with RelayServer(first.url, tmp_path / "c", 1 << 30, origin_token=B) as third:
            with pytest.raises(TransferError, match=r"answered 422 Unprocessable Entity: .*answered 401"):
                newest(third.url, None)


def test_clients_get_bytes_while_they_arrive(tmp_path: Path) -> None:
    content = noise(0, 4 * BLOCK_BYTES)
    (chunk,) = put(tmp_path / "store", 0, None, [content]).chunks
    scripted = Scripted(tmp_path / "store")
    go_on = threading.Event()

    async def in_two_parts(request: web.Request, _: Path) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(content))})
        await response.prepare(request)
        await response.write(content[: 2 * BLOCK_BYTES])
        await asyncio.to_thread(go_on.wait)
        await response.write(content[2 * BLOCK_BYTES :])
        return response

    scripted.send_chunk = in_two_parts
    with scripted.served() as origin, RelayServer(origin, tmp_path / "cache", 1 << 30) as relay:
        with urllib.request.urlopen(f"{relay.url}/v1/chunks/{chunk.sha256}", timeout=10) as response:
            assert response.read(BLOCK_BYTES) == content[:BLOCK_BYTES]
            status_, headers, body = get(relay.url, chunk.sha256, "7-16")
            assert (status_, body) == (206, content[7:17])
            assert headers["Content-Range"] == f"bytes 7-16/{len(content)}"
            assert get(relay.url, chunk.sha256, f"{len(content)}-")[0] == 416
            assert get(relay.url, chunk.sha256, method="HEAD")[1]["Content-Length"] == str(len(content))
            go_on.set()
            assert response.read() == content[BLOCK_BYTES:]
        assert get(relay.url, chunk.sha256, "-10")[::2] == (206, content[-10:])
    assert scripted.gets[chunk.sha256] == 1


def test_the_budget_holds_whatever_is_asked_for(tmp_path: Path) -> None:
    contents = [noise(seed, 100_000) for seed in range(5)]
    chunks = put(tmp_path / "store", 0, None, contents).chunks
    scripted = Scripted(tmp_path / "store")
    with scripted.served() as origin, RelayServer(origin, tmp_path / "cache", 250_000) as relay:
        for _ in range(2):
            for chunk, content in zip(chunks, contents, strict=True):
                assert get(relay.url, chunk.sha256)[2] == content
                assert kept(tmp_path / "cache") <= 250_000
        assert get(relay.url, chunks[-1].sha256)[0] == 200
        assert scripted.gets[chunks[-1].sha256] == 2
    with scripted.served() as origin, RelayServer(origin, tmp_path / "small", 99_999) as relay:
        code, _, why = get(relay.url, chunks[0].sha256)
        assert (code, b"the relay's budget (99999)" in why) == (422, True)


def test_what_does_not_match_its_hash_is_not_kept(tmp_path: Path) -> None:
    content = noise(0, 600_000)
    (chunk,) = put(tmp_path / "store", 0, None, [content]).chunks
    scripted = Scripted(tmp_path / "store")
    bodies = [bytes(600_000), content, *[bytes(600_000)] * 20]

    async def next_body(*_: object) -> web.StreamResponse:
        return web.Response(body=bodies.pop(0))

    scripted.send_chunk = next_body
    with scripted.served() as origin:
        with RelayServer(origin, tmp_path / "cache", 1 << 30) as relay:
            assert contents_of(Receiver(relay.url, None, tmp_path / "a").fetch(0, None)) == [content]
            assert scripted.gets[chunk.sha256] == 2
        with RelayServer(origin, tmp_path / "other", 1 << 30) as relay:
            with pytest.raises(TransferError, match=f"chunk {chunk.sha256} .*SHA-256"):
                Receiver(relay.url, None, tmp_path / "b").fetch(0, None)
            manifest_bytes = (tmp_path / "store" / "00000000-anchor.json").stat().st_size
            until(lambda: kept(tmp_path / "other") == manifest_bytes)


def test_a_trainer_that_begins_anew_is_not_answered_for_with_the_old_one(tmp_path: Path) -> None:
    put(tmp_path / "store", 0, None, [b"old-"])
    with Scripted(tmp_path / "store").served() as origin, RelayServer(origin, tmp_path / "cache", 1 << 30) as relay:
        for number, content in enumerate((b"old-", b"new---")):
            put(tmp_path / "store", 0, None, [content])
            assert contents_of(Receiver(relay.url, None, tmp_path / f"{number}").fetch(0, None)) == [content]


def test_one_forged_manifest_keeps_nobody_from_the_sound_one(tmp_path: Path) -> None:
    """As somebody on the way may answer once, with the tag of the origin's own."""
    content, folder = b"sound", tmp_path / "store"
    put(folder, 0, None, [content])
    forgeries = [put(tmp_path / "elsewhere", 0, None, [b"other"]).to_bytes()]

    async def send_manifest(request: web.Request, path: Path) -> web.StreamResponse:
        if request.method == "HEAD" or not forgeries:
            return await send_file(request, path)
        return web.Response(body=forgeries.pop())

    scripted = Scripted(folder)
    scripted.send_manifest = send_manifest
    with scripted.served() as origin, RelayServer(origin, tmp_path / "cache", 1 << 30) as relay:
        # It fails, or its second try already finds the sound one.
        with suppress(TransferError):
            Receiver(relay.url, None, tmp_path / "first").fetch(0, None)
        assert not forgeries
        assert contents_of(Receiver(relay.url, None, tmp_path / "second").fetch(0, None)) == [content]


def test_pins_and_acknowledgements_reach_the_origin(tmp_path: Path) -> None:
    put(tmp_path / "store", 0, None, [b"1234"])
    scripted = Scripted(tmp_path / "store")
    scripted.pin, scripted.ttl_s = "mine", 0.3
    go_on = threading.Event()

    async def wait(request: web.Request, path: Path) -> web.StreamResponse:
        await asyncio.to_thread(go_on.wait)
        return await send_file(request, path)

    scripted.send_chunk = wait
    with scripted.served() as origin, RelayServer(origin, tmp_path / "cache", 1 << 30) as relay:
        receiver = Receiver(relay.url, None, tmp_path / "staging")
        receiver.name = "me"
        with ThreadPoolExecutor() as pool:
            fetching = pool.submit(receiver.fetch, 0, None)
            until(lambda: scripted.pins.count("PUT mine") == 2)
            go_on.set()
            fetching.result()
        until(lambda: scripted.pins[-1] == "DELETE mine")
        receiver.acknowledge(0, "a" * 64)
    assert scripted.acks == [{"receiver": "me", "version": 0, "weights_sha256": "a" * 64}]


def test_two_relays_cannot_share_a_folder_or_be_open_without_a_token(tmp_path: Path) -> None:
    with RelayServer("http://trainer:1", tmp_path / "cache", 1 << 30):
        with pytest.raises(TransferError, match="cache of another running relay"):
            RelayServer("http://trainer:1", tmp_path / "cache", 1 << 30).start()
    with pytest.raises(OpenAddressError, match="can be reached from other machines"):
        RelayServer("http://trainer:1", tmp_path / "cache", 1 << 30, host="0.0.0.0")
    with RelayServer("http://trainer:1", tmp_path / "cache", 1 << 30):
        pass
