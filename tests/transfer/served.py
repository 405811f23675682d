"""Stores made by hand and the servers before them: one that does as told, and processes that can be killed."""

import asyncio
import hashlib
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.process
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from benchmarks.transfer.throttle import Throttle
from rose.transfer.apply.staged import Staged
from rose.transfer.package.manifest import Chunk, Manifest, Package, index_bytes, plan
from rose.transfer.wire.origin import Route, open_origin
from rose.transfer.wire.receiver import Receiver
from rose.transfer.wire.server import Server
from tests.transfer.made_manifests import piece

Send = Callable[[web.Request, Path], Awaitable[web.StreamResponse]]
#: Of each tensor that `put` makes, of two bytes each: no chunk can be larger.
ELEMENTS = 8 << 20

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def newest(url: str, token: str | None) -> int | None:
    with closing(open_origin(url, token)) as origin:
        return max((package.version for package in origin.packages()), default=None)


def noise(seed: int, size_bytes: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def put(folder: Path, version: int, base: int | None, contents: Sequence[bytes], *, listed: bool = True) -> Manifest:
    """Add a package with a chunk and a tensor for each of the meaningless `contents`; `listed`: also to the index."""
    chunks = []
    for content in contents:
        sha256 = hashlib.sha256(content).hexdigest()
        path = folder / "chunks" / sha256[:2] / sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        chunks.append(Chunk(sha256, len(content)))
    leads = {"result_xxh3": f"{version:032x}", "base_xxh3": None if base is None else f"{base:032x}"}
    plain = {"shape": (ELEMENTS,), "encoding": "dense" if base is None else "fast", "changed": 0, **leads}
    pieces = tuple(
        piece(f"t{index:03d}", (0,), (ELEMENTS,), chunk=index, length=chunk.size_bytes, **plain)
        for index, chunk in enumerate(chunks)
    )
    manifest = Manifest(version=version, base_version=base, encode_ns=1, chunks=tuple(chunks), pieces=pieces)
    (folder / f"{manifest.package.stem}.json").write_bytes(manifest.to_bytes())
    if listed:
        index(folder)
    return manifest


def remove(folder: Path, manifest: Manifest) -> None:
    (folder / f"{manifest.package.stem}.json").unlink()
    for chunk in manifest.chunks:
        (folder / "chunks" / chunk.sha256[:2] / chunk.sha256).unlink()
    index(folder)


def index(folder: Path) -> None:
    named = (path for path in sorted(folder.glob("*.json")) if Package.parse(path.stem))
    (folder / "index.json").write_bytes(index_bytes(Manifest.from_bytes(path.read_bytes()).package for path in named))


async def send_file(_: web.Request, path: Path) -> web.StreamResponse:
    return web.FileResponse(path)


async def send_nothing(request: web.Request, path: Path) -> web.StreamResponse:
    """Announce the file and send nothing until the other side goes."""
    size_bytes = await asyncio.to_thread(lambda: path.stat().st_size)
    response = web.StreamResponse(headers={"Content-Length": str(size_bytes)})
    await response.prepare(request)
    while request.transport is not None:  # noqa: ASYNC110 - aiohttp sets no event
        await asyncio.sleep(0.01)
    return response


class Scripted:
    """Serves a store's folder, counts what is asked for, and answers for chunks and manifests as the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: GET requests by the last part of their path.
        self.gets: Counter[str] = Counter()
        self.pins: list[str] = []
        self.acks: list[dict[str, Any]] = []
        self.pin: str | None = None
        self.ttl_s = 60.0
        self.plan = plan
        self.send_chunk: Send = send_file
        self.send_manifest: Send = send_file

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/packages", self._index)
        app.router.add_get("/v1/packages/{name}", self._manifest)
        app.router.add_get("/v1/chunks/{name}", self._chunk)
        app.router.add_post("/v1/pins", self._pin)
        app.router.add_put("/v1/pins/{name}", self._touch)
        app.router.add_delete("/v1/pins/{name}", self._touch)
        app.router.add_post("/v1/acks", self._ack)
        return app

    def packages(self) -> list[Package]:
        return [Package(**item) for item in json.loads((self.folder / "index.json").read_bytes())["packages"]]

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=(self.folder / "index.json").read_bytes())

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        self._count(request)
        return await self.send_manifest(request, self.folder / request.match_info["name"])

    async def _chunk(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        path = self.folder / "chunks" / name[:2] / name
        if request.method == "HEAD":
            return web.FileResponse(path)
        self._count(request)
        return await self.send_chunk(request, path)

    async def _pin(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        route = Route(tuple(self.plan(self.packages(), body["version"], body["have"])), self.pin, self.ttl_s)
        return web.Response(body=msgspec.json.encode(route))

    async def _touch(self, request: web.Request) -> web.StreamResponse:
        self.pins.append(f"{request.method} {request.match_info['name']}")
        return web.Response()

    async def _ack(self, request: web.Request) -> web.StreamResponse:
        self.acks.append(await request.json())
        return web.Response()

    def _count(self, request: web.Request) -> None:
        if request.method == "GET":
            self.gets[request.match_info["name"]] += 1

    @contextmanager
    def served(self) -> Iterator[str]:
        with Server(self.app(), "127.0.0.1", 0, None) as server:
            yield server.url


def contents_of(staged: Staged) -> list[bytes]:
    return [bytes(staged.chunk(chunk)) for manifest in staged.manifests for chunk in manifest.chunks]


def warm_up() -> None:
    """Begin to load what processes need, beside the tests that need none."""
    multiprocessing.forkserver.ensure_running()


def fetch_slowly(url: str, staging: Path) -> None:
    Receiver(url, None, staging, pace=Throttle(1e6).wait).fetch(0, None)


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[multiprocessing.process.BaseProcess]:
    started = _processes.Process(target=target, args=arguments, daemon=True)
    started.start()
    try:
        yield started
    finally:
        kill(started)


def kill(started: multiprocessing.process.BaseProcess) -> None:
    assert started.pid is not None
    if started.is_alive():
        os.kill(started.pid, signal.SIGKILL)
    started.join()


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to this"
        time.sleep(0.001)
