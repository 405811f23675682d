"""A relay fetches each chunk once for a cluster. It passes bytes on as they arrive, and the last byte after a check."""

import asyncio
import functools
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Chunk, Manifest, Package
from rose.transfer.wire.cache import ChunkCache
from rose.transfer.wire.download import download
from rose.transfer.wire.origin import BLOCK_BYTES, BrokenError, Origin, open_origin
from rose.transfer.wire.origin_rules import ANYWHERE, OriginRules
from rose.transfer.wire.server import Server, make_app

_Result = TypeVar("_Result")
_PULLS, _CALLS = 8, 8  # How many downloads, and how many other requests to the origin, run at once.


class RelayServer(Server):
    """Serves the origin's packages, and keeps at most `budget_bytes` in `folder`. `signer` must have signed them."""

    def __init__(
        self,
        origin_url: str,
        folder: Path,
        budget_bytes: int,
        host: str = "127.0.0.1",
        token: str | None = None,
        *,
        origin_token: str | None = None,
        rules: OriginRules = ANYWHERE,
        signer: str | None = None,
        retries: int = 5,
    ) -> None:
        self.origin = open_origin(origin_url, origin_token, rules=rules)
        relay = _Relay(self.origin, functools.partial(ChunkCache, folder, budget_bytes), retries, signer)
        app = make_app(self.origin, relay, token, relay.calls)
        app.cleanup_ctx.append(relay.running)
        super().__init__(app, host, 0, token)


@dataclass(slots=True)
class _Download:
    size_bytes: int | None = None  # None until it is known and there is room for it.
    written_bytes: int = 0  # This many bytes of the file may be sent. After a wrong hash it is 0 again.
    failure: TransferError | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def wrote(self, written_bytes: int) -> None:
        self.written_bytes = written_bytes
        self.tell()

    async def until(self, met: Callable[[], bool]) -> None:
        while not met():
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()

    async def reached(self, position: int) -> None:
        await self.until(lambda: self.written_bytes > position)


@dataclass(frozen=True, slots=True)
class _CachedManifest:
    tag: str
    sha256: str
    chunks: frozenset[str]


class _Relay:
    _cache: ChunkCache

    def __init__(self, origin: Origin, cache: Callable[[], ChunkCache], retries: int, signer: str | None) -> None:
        self._origin, self._make_cache, self._retries, self._signer = origin, cache, retries, signer
        self.calls = ThreadPoolExecutor(_CALLS, thread_name_prefix="rose-relay-call")
        self._pulls = ThreadPoolExecutor(_PULLS, thread_name_prefix="rose-relay-pull")
        self._stopped = threading.Event()
        self._downloads: dict[str, _Download] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._manifests: dict[Package, _CachedManifest] = {}
        self._manifest_turn = asyncio.Lock()

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        self._cache = self._make_cache()
        yield
        self._stopped.set()
        self._origin.interrupt()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self.calls, self._pulls):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        self._origin.close()
        self._cache.close()

    async def manifest(self, package: Package) -> web.StreamResponse:
        # The name alone does not identify a manifest: a restarted trainer uses the same names.
        tag = await self._ask(self._origin.manifest_tag, package)
        if (sha256 := self._cached_manifest(package, tag)) is None:
            async with self._manifest_turn:
                if (sha256 := self._cached_manifest(package, tag)) is None:
                    sha256 = await self._pull_manifest(package, tag)
        return _CachedFile(self._cache, sha256)

    async def chunk(self, request: web.Request, sha256: str) -> web.StreamResponse:
        if sha256 in self._cache:
            return _CachedFile(self._cache, sha256)
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": str(await self._ask(self._origin.chunk_bytes, sha256))})
        if (state := self._downloads.get(sha256)) is None:
            state = self._downloads[sha256] = _Download()
            task = asyncio.create_task(self._pull_chunk(sha256, state))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await self._follow(request, sha256, state)

    async def _ask(self, call: Callable[..., _Result], *arguments: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self.calls, call, *arguments)

    def _cached_manifest(self, package: Package, tag: str) -> str | None:
        kept = self._manifests.get(package)
        return kept.sha256 if kept is not None and kept.tag == tag and kept.sha256 in self._cache else None

    async def _pull_manifest(self, package: Package, tag: str) -> str:
        data = await self._ask(self._origin.manifest_bytes, package)
        manifest = await self._ask(functools.partial(Manifest.from_bytes, data, signer=self._signer))
        if manifest.package != package:
            raise TransferError(f"asked {self._origin.url} for package {package.stem}, got {manifest.package.stem}")
        if (sha256 := hashlib.sha256(data).hexdigest()) not in self._cache:
            await self._cache.reserve(sha256, len(data))
            complete = False
            try:
                await asyncio.to_thread(self._cache.path(sha256).write_bytes, data)
                complete = True
            finally:
                self._cache.finish(sha256, complete=complete)
        self._manifests = {known: kept for known, kept in self._manifests.items() if kept.sha256 in self._cache}
        self._manifests[package] = _CachedManifest(tag, sha256, frozenset(chunk.sha256 for chunk in manifest.chunks))
        return sha256

    async def _pull_chunk(self, sha256: str, state: _Download) -> None:
        loop = asyncio.get_running_loop()

        def progress(written_bytes: int) -> None:
            loop.call_soon_threadsafe(state.wrote, written_bytes)

        complete = False
        try:
            size_bytes = await self._ask(self._origin.chunk_bytes, sha256)
            await self._cache.reserve(sha256, size_bytes)
            state.size_bytes = size_bytes
            state.tell()
            pull = functools.partial(
                download,
                self._origin,
                Chunk(sha256, size_bytes),
                self._cache.path(sha256),
                retries=self._retries,
                stopped=self._stopped,
                progress=progress,
            )
            await loop.run_in_executor(self._pulls, pull)
            complete = True
        except TransferError as error:
            if not isinstance(error, BrokenError):
                # The origin lacks the chunk, so it may have other manifests under these names.
                self._manifests = {known: kept for known, kept in self._manifests.items() if sha256 not in kept.chunks}
            state.failure = error
        except Exception as error:  # Clients that wait for the download must hear of any error.
            state.failure = TransferError(f"the relay failed on chunk {sha256} ({type(error).__name__}: {error})")
        finally:
            if state.size_bytes is not None:
                self._cache.finish(sha256, complete=complete)
            del self._downloads[sha256]
            state.tell()

    async def _follow(self, request: web.Request, sha256: str, state: _Download) -> web.StreamResponse:
        await state.until(lambda: state.size_bytes is not None)
        size_bytes = state.size_bytes
        assert size_bytes is not None, "it was waited for"
        try:
            span = range(size_bytes)[request.http_range]
        except ValueError:
            span = range(0)
        if not span:
            raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size_bytes}"})
        with self._cache.held(sha256):
            await state.reached(span.start)
            # If the chunk is fetched once more meanwhile, this response continues with the file that it opened. The
            # client finds a wrong hash and asks again. By then the new chunk is complete, since the last byte waits for
            # it.
            try:
                file = await asyncio.to_thread(os.open, self._cache.path(sha256), os.O_RDONLY)
            except FileNotFoundError:
                raise BrokenError(f"chunk {sha256} did not match its hash and is fetched once more")
            response = web.StreamResponse(headers={"Content-Length": str(len(span)), "Accept-Ranges": "bytes"})
            if "Range" in request.headers:
                response.set_status(206)
                response.headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size_bytes}"
            position = span.start
            try:
                await response.prepare(request)
                while position < span.stop:
                    await state.reached(position)
                    count = min(BLOCK_BYTES, state.written_bytes - position, span.stop - position)
                    block = await asyncio.to_thread(os.pread, file, count, position)
                    if not block:
                        break
                    await response.write(block)
                    position += len(block)
            except TransferError:
                pass
            finally:
                os.close(file)
        if position < span.stop and request.transport is not None:
            request.transport.abort()  # The client resumes after the bytes that it got.
        return response


class _CachedFile(web.FileResponse):
    def __init__(self, cache: ChunkCache, sha256: str) -> None:
        super().__init__(cache.path(sha256))
        self._held = functools.partial(cache.held, sha256)

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        with self._held():
            return await super().prepare(request)
