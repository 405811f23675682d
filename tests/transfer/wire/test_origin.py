import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.runtime.engines.ports import free_port
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk, Manifest, Package
from rose.transfer.wire.origin import BLOCK_BYTES, BrokenError, GoneError, Origin, RefusedError, Route, open_origin
from rose.transfer.wire.server import Server
from tests.transfer.served import Scripted, noise, put, send_nothing, until

#: Larger than what is asked of an object store at a time.
CONTENTS = [noise(1, 5_000_000), noise(2, 1000)]
ODD = st.sampled_from([None, True, -1, 10**400, 0.5, float("nan"), float("inf"), 5e-324, "", "x", [], {}])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    put(folder, 0, None, CONTENTS)
    put(folder, 1, 0, CONTENTS[1:] * 2)
    return folder


@pytest.fixture(params=["http", "file", "s3"])
def origin(request: pytest.FixtureRequest, folder: Path, bucket: str) -> Iterator[Origin]:
    if request.param == "http":
        with Scripted(folder).served() as url:
            yield from opened(url)
    elif request.param == "file":
        yield from opened(folder.as_uri())
    else:
        fsspec.filesystem("s3").put(f"{folder}/", f"{bucket}/copy/", recursive=True)
        yield from opened(f"{bucket}/copy/")


def opened(url: str) -> Iterator[Origin]:
    origin = open_origin(url, None)
    yield origin
    origin.close()


def read(origin: Origin, chunk: Chunk, offset: int = 0) -> bytes:
    return b"".join(bytes(block) for block in origin.read_chunk(chunk, offset))


def test_every_kind_of_origin_gives_the_same(origin: Origin, folder: Path) -> None:
    assert origin.packages() == [Package(0, None), Package(1, 0)]
    assert [package.blob_bytes for package in origin.packages()] == [5_001_000, 1000]
    assert origin.route(1, 0).packages == (Package(1, 0),)
    assert origin.route(1, None).packages == (Package(0, None), Package(1, 0))
    data = origin.manifest_bytes(Package(0, None))
    assert data == (folder / "00000000-anchor.json").read_bytes()
    chunk = Manifest.from_bytes(data).chunks[0]
    assert origin.chunk_bytes(chunk.sha256) == 5_000_000
    before = origin.received_bytes
    for offset in (0, 1, BLOCK_BYTES, 4_999_999):
        assert read(origin, chunk, offset) == CONTENTS[0][offset:]
    assert origin.received_bytes - before == sum(5_000_000 - offset for offset in (0, 1, BLOCK_BYTES, 4_999_999))


def test_what_is_not_there_is_gone(origin: Origin) -> None:
    package = Package(9, None)
    for ask in (
        lambda: origin.manifest_bytes(package),
        lambda: origin.manifest_tag(package),
        lambda: origin.chunk_bytes("0" * 64),
        lambda: read(origin, Chunk("0" * 64, 10)),
    ):
        with pytest.raises(GoneError):
            ask()


@pytest.mark.parametrize(
    ("url", "token"), [("http://a..b", None), ("http://host/\xe9", None), ("http://host", "of\nit")]
)
def test_what_http_cannot_carry_is_named_without_the_token(url: str, token: str | None) -> None:
    with pytest.raises(TransferError, match=f"{url} cannot be requested: .* token") as refused:
        open_origin(url, token).packages()
    assert not isinstance(refused.value, BrokenError)
    assert "of\nit" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_kept_connection_that_the_server_dropped_is_opened_again(folder: Path) -> None:
    port = free_port()
    app = Scripted(folder).app
    with Server(app(), "127.0.0.1", port, None):
        origin = open_origin(f"http://127.0.0.1:{port}", None)
        origin.packages()
    with Server(app(), "127.0.0.1", port, None):
        assert len(origin.packages()) == 2
    with pytest.raises(BrokenError, match=f"transfer from {origin.url} broke off .*refused.*try again"):
        origin.packages()


def test_a_body_left_in_the_middle_does_not_get_into_the_next_answer(folder: Path) -> None:
    with Scripted(folder).served() as url:
        origin = open_origin(url, None)
        chunk = Manifest.from_bytes(origin.manifest_bytes(Package(0, None))).chunks[0]
        blocks = origin.read_chunk(chunk, 0)
        next(blocks)
        del blocks
        assert len(origin.packages()) == 2
        origin.close()


@contextmanager
def answering(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[Origin]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    with Server(app, "127.0.0.1", 0, None) as server:
        yield from opened(server.url)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, GoneError),
        (409, RefusedError),
        (422, TransferError),
        (401, TransferError),
        (302, TransferError),
        (500, BrokenError),
    ],
)
def test_what_is_said_of_a_bad_answer(status: int, kind: type[TransferError]) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="so it is")

    with answering(answer) as origin, pytest.raises(TransferError, match=f"answered {status} .*: so it is") as raised:
        origin.packages()
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b"12345", {}),
        (200, b"1234567", {}),
        (206, b"456", {}),
        (206, b"456", {"Content-Range": "bytes 2-4/6"}),
        (206, b"456", {"Content-Range": "bytes 3-5/7"}),
        (206, b"45", {"Content-Range": "bytes 3-5/6"}),
    ],
)
def test_a_body_of_another_length_or_place_is_refused(status: int, body: bytes, headers: dict[str, str]) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    with answering(answer) as origin, pytest.raises(TransferError, match=f"announces {len(body)} bytes") as raised:
        read(origin, Chunk("a" * 64, 6), 3)
    assert type(raised.value) is TransferError


def test_a_proxy_that_knows_no_ranges_sends_all_and_the_rest_is_taken() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=CONTENTS[0])

    with answering(answer) as origin:
        assert read(origin, Chunk("a" * 64, 5_000_000), 4_000_001) == CONTENTS[0][4_000_001:]


@pytest.mark.parametrize(
    "headers", [{"Transfer-Encoding": "chunked"}, {"Content-Length": str(1 << 40)}], ids=["unknown", "huge"]
)
def test_an_answer_without_a_bound_is_refused(headers: dict[str, str]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response

    with answering(answer) as origin, pytest.raises(TransferError, match="is this a weight store"):
        origin.manifest_bytes(Package(0, None))


def test_a_server_that_is_no_weight_store_is_refused() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    with answering(answer) as origin:
        for ask in (origin.packages, lambda: origin.route(1, None), lambda: origin.manifest_tag(Package(0, None))):
            with pytest.raises(TransferError, match="weight store"):
                ask()


@settings(max_examples=50)
@given(ODD, ODD, ODD)
def test_anything_else_than_a_route_is_refused(packages: object, pin: object, ttl_s: object) -> None:
    try:
        route = Route.from_bytes(json.dumps({"packages": packages, "pin": pin, "ttl_s": ttl_s}).encode())
    except TransferError:
        return
    assert Route.from_bytes(msgspec.json.encode(route)) == route


def test_an_interrupt_wakes_who_waits(tmp_path: Path) -> None:
    (chunk,) = put(tmp_path, 0, None, [b"1234"]).chunks
    scripted = Scripted(tmp_path)
    scripted.send_chunk = send_nothing
    with scripted.served() as url:
        origin = open_origin(url, None)

        def interrupt() -> None:
            until(lambda: bool(scripted.gets))
            origin.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(BrokenError):
            read(origin, chunk)
        thread.join()
