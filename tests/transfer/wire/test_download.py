import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk
from rose.transfer.wire.download import download
from rose.transfer.wire.origin import BrokenError, Origin, open_origin
from tests.transfer.served import Scripted, noise, put

CONTENT = noise(1, 1_000_000)
CHUNK = Chunk(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    put(folder, 0, None, [CONTENT])
    return folder


@pytest.fixture
def scripted(folder: Path) -> Iterator[tuple[Scripted, Origin]]:
    scripted = Scripted(folder)
    with scripted.served() as url:
        origin = open_origin(url, None)
        yield scripted, origin
        origin.close()


def fetch(origin: Origin, path: Path, *, retries: int = 0) -> None:
    download(origin, CHUNK, path, retries=retries, stopped=threading.Event())
    assert path.read_bytes() == CONTENT


@given(st.integers(0, len(CONTENT)), st.binary(max_size=3) | st.just(b"x" * len(CONTENT)))
def test_whatever_lies_there_the_chunk_is_made_of_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, kept: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("partial") / "chunk"
    path.write_bytes(CONTENT[:kept] + junk)
    origin = open_origin(folder.as_uri(), None)
    fetch(origin, path)
    assert origin.received_bytes <= 2 * len(CONTENT) - kept
    if not junk:
        assert origin.received_bytes == len(CONTENT) - kept


def test_a_connection_that_breaks_again_and_again_is_resumed_while_bytes_come(
    scripted: tuple[Scripted, Origin], tmp_path: Path
) -> None:
    server, origin = scripted

    async def a_third(request: web.Request, path: Path) -> web.StreamResponse:
        start = request.http_range.start or 0
        assert request.headers.get("Range", "bytes=0-") == f"bytes={start}-"
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(CONTENT) - start
        if start:
            response.headers["Content-Range"] = f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}"
        await response.prepare(request)
        await response.write(CONTENT[start : start + 400_000])
        assert request.transport is not None
        request.transport.close()
        return response

    server.send_chunk = a_third
    fetch(origin, tmp_path / "chunk", retries=0)
    assert server.gets[CHUNK.sha256] == 3
    assert origin.received_bytes == len(CONTENT)


def test_without_a_byte_it_gives_up_after_the_retries(scripted: tuple[Scripted, Origin], tmp_path: Path) -> None:
    server, origin = scripted

    async def refuse(_: web.Request, __: Path) -> web.StreamResponse:
        return web.Response(status=503, text="too busy")

    server.send_chunk = refuse
    with pytest.raises(BrokenError, match="answered 503 Service Unavailable: too busy"):
        fetch(origin, tmp_path / "chunk", retries=1)
    assert server.gets[CHUNK.sha256] == 2


def test_an_altered_chunk_is_fetched_once_more_from_its_first_byte_then_refused(
    scripted: tuple[Scripted, Origin], tmp_path: Path
) -> None:
    server, origin = scripted
    bodies = [CONTENT[:-1] + b"x", CONTENT[500_000:] + CONTENT[:500_000], CONTENT[:-2] + b"x", CONTENT]
    asked = []

    async def next_body(request: web.Request, _: Path) -> web.StreamResponse:
        asked.append(request.headers.get("Range"))
        return web.Response(body=bodies.pop(0))

    server.send_chunk = next_body
    path = tmp_path / "chunk"
    with pytest.raises(TransferError, match=f"chunk {CHUNK.sha256} at {origin.url} is damaged: it twice had SHA-256"):
        fetch(origin, path)
    assert not path.exists()
    bodies[0] = CONTENT[:-1] + b"y"
    fetch(origin, path)
    assert asked == [None] * 4


def test_the_last_byte_is_not_passed_on_before_the_whole_matches(folder: Path, tmp_path: Path) -> None:
    path, told = tmp_path / "chunk", []
    path.write_bytes(b"x" + CONTENT[1:-9])
    origin = open_origin(folder.as_uri(), None)

    def progress(count_bytes: int) -> None:
        told.append(count_bytes)
        if count_bytes == len(CONTENT):
            assert path.read_bytes() == CONTENT

    for _ in range(2):
        download(origin, CHUNK, path, retries=0, stopped=threading.Event(), progress=progress)
    most = len(CONTENT) - 1
    assert told == [len(CONTENT) - 9, most, 0, most, len(CONTENT), len(CONTENT)]
