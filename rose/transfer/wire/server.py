"""The HTTP interface of weight transfer (`docs/weights.md`), and the server of a store's folder."""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self, TypeVar, cast

import msgspec
from aiohttp import web

from rose.http_limits import ACCEPTS, BODY_S, connections_max
from rose.ledger.address import check_guarded, refusal
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Number, Package, Sha256, index_bytes, plan
from rose.transfer.wire.origin import PIN, BrokenError, GoneError, Origin, RefusedError, Route

if TYPE_CHECKING:
    from rose.transfer.store.store import VersionStore

_Result = TypeVar("_Result")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_STATUS = {GoneError: web.HTTPNotFound, BrokenError: web.HTTPBadGateway, RefusedError: web.HTTPConflict}
_RATE = re.compile(r"[1-9][0-9]{0,12}")
_IDLE_S = 30.0  # A connection without a request under way, or with an incomplete head, is closed after this.


class _PinRequest(msgspec.Struct):
    version: Number
    have: Number | None = None


class _Acknowledgement(msgspec.Struct):
    receiver: Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
    version: Number
    weights_sha256: Sha256


_B = TypeVar("_B", _PinRequest, _Acknowledgement)


class Files(Protocol):
    async def manifest(self, package: Package) -> web.StreamResponse: ...
    async def chunk(self, request: web.Request, sha256: str) -> web.StreamResponse: ...


def make_app(
    calls: Origin | _StoreCalls, files: Files, token: str | None, executor: Executor | None = None
) -> web.Application:
    async def ask(call: Callable[..., _Result], *arguments: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(executor, call, *arguments)

    async def index(_: web.Request) -> web.Response:
        return _json(index_bytes(await ask(calls.packages)))

    async def manifest(request: web.Request) -> web.StreamResponse:
        # Rebuilt from the parsed name, so that no path from the client reaches the file system.
        if (package := Package.parse(request.match_info["stem"])) is None:
            raise web.HTTPNotFound(text=f"{request.match_info['stem']!r} is not the name of a package")
        return await files.manifest(package)

    async def chunk(request: web.Request) -> web.StreamResponse:
        return await files.chunk(request, request.match_info["sha256"])

    async def pin(request: web.Request) -> web.Response:
        pin_request = await _body(request, _PinRequest)
        return _json(msgspec.json.encode(await ask(calls.route, pin_request.version, pin_request.have)))

    async def renew(request: web.Request) -> web.Response:
        await ask(calls.renew, request.match_info["pin"])
        return web.Response()

    async def unpin(request: web.Request) -> web.Response:
        rate = request.query.get("bytes_per_s")
        if rate is not None and not _RATE.fullmatch(rate):
            raise web.HTTPBadRequest(text=f"bytes_per_s is {rate[:20]!r}, expected a whole number above 0")
        await ask(calls.unpin, request.match_info["pin"], None if rate is None else float(rate))
        return web.Response()

    async def acknowledge(request: web.Request) -> web.Response:
        acknowledgement = await _body(request, _Acknowledgement)
        await ask(calls.acknowledge, acknowledgement.receiver, acknowledgement.version, acknowledgement.weights_sha256)
        return web.Response()

    app = web.Application(middlewares=[_authorise(token), _with_status])
    app.router.add_get("/v1/packages", index)
    app.router.add_get("/v1/packages/{stem}.json", manifest)
    app.router.add_get("/v1/chunks/{sha256:[0-9a-f]{64}}", chunk)
    app.router.add_post("/v1/pins", pin)
    app.router.add_put(f"/v1/pins/{{pin:{PIN.pattern}}}", renew)
    app.router.add_delete(f"/v1/pins/{{pin:{PIN.pattern}}}", unpin)
    app.router.add_post("/v1/acks", acknowledge)
    return app


class Server:
    """Serves in its own thread. Raises OpenAddressError or SecretError if strangers could reach the server."""

    def __init__(self, app: web.Application, host: str, port: int, token: str | None) -> None:
        check_guarded(host, token, "`token`, --token-file or ROSE_WEIGHTS_TOKEN")
        self._app, self._host, self._port = app, host, port
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> Self:
        assert self._thread is None, "already started"
        bound: Future[Callable[[], object]] = Future()

        def serve() -> None:
            try:
                asyncio.run(self._serve(bound))
            except Exception as error:
                bound.set_exception(error)

        thread = threading.Thread(target=serve, name="rose-weights-server", daemon=True)
        thread.start()
        self._end = bound.result()
        self._thread = thread
        return self

    async def _serve(self, bound: Future[Callable[[], object]]) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        # JSON bodies come uncompressed. Do not wait for unread bodies.
        runner = web.AppRunner(
            self._app,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=_IDLE_S,
            auto_decompress=False,
            lingering_time=0.0,
        )
        try:
            await runner.setup()
            assert runner.server is not None
            accept = functools.partial(_accept, runner.server, connections_max())
            site = await loop.create_server(accept, self._host, self._port, backlog=ACCEPTS)
            self._port = site.sockets[0].getsockname()[1]
            bound.set_result(functools.partial(loop.call_soon_threadsafe, stopped.set))
            await stopped.wait()
            site.close()
        finally:
            await runner.cleanup()

    def stop(self) -> None:
        if self._thread is not None:
            self._end()
            self._thread.join()
        self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class StoreServer(Server):
    def __init__(
        self,
        store: VersionStore,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        *,
        pin_ttl_s: float = 120.0,
    ) -> None:
        calls = _StoreCalls(store, pin_ttl_s)
        super().__init__(make_app(calls, calls, token), host, port, token)


class _StoreCalls:
    def __init__(self, store: VersionStore, pin_ttl_s: float) -> None:
        self._store, self._pin_ttl_s = store, pin_ttl_s
        self.packages = store.packages
        self._known: tuple[int, str] | None = None  # Last acknowledged version and hash: many receivers send it.

    async def manifest(self, package: Package) -> web.StreamResponse:
        return _file(self._store.folder / f"{package.stem}.json", f"package {package.stem}")

    async def chunk(self, _: web.Request, sha256: str) -> web.StreamResponse:
        return _file(self._store.folder / "chunks" / sha256[:2] / sha256, f"chunk {sha256}")

    def renew(self, pin: str) -> None:
        self._store.claims.renew(pin, self._pin_ttl_s)

    def unpin(self, pin: str, bytes_per_s: float | None = None) -> None:
        self._store.claims.unpin(pin)
        if bytes_per_s is not None:
            self._store.measured(bytes_per_s)

    def route(self, version: int, have: int | None) -> Route:
        for _ in range(5):  # A chain may be removed before it is pinned.
            packages = tuple(plan(self._store.packages(), version, have))
            pin = self._store.claims.pin(packages, self._pin_ttl_s)
            if set(packages) <= set(self._store.packages()):
                return Route(packages, pin, self._pin_ttl_s)
            self.unpin(pin)  # Packages of the chain were removed in between.
        raise BrokenError(f"packages that lead to version {version} were removed before they were pinned; try again")

    def acknowledge(self, receiver: str, version: int, weights_sha256: str) -> None:
        # A run that restarts in this folder uses the same numbers: an earlier run's hash must not refuse a receiver.
        if self._known != (version, weights_sha256):
            package = next((package for package in self._store.packages() if package.version == version), None)
            if package is None:
                raise GoneError(f"the store holds no version {version}")
            expected = self._store.manifest(package).weights_sha256
            self._known = (version, expected)
            if weights_sha256 != expected:
                raise RefusedError(
                    f"receiver {receiver!r} holds weights {weights_sha256} as version {version}, expected "
                    f"{expected}: it has drifted; bring it back from an anchor"
                )
        self._store.claims.acknowledge(receiver, version)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


def _accept(server: web.Server, most: int) -> asyncio.Protocol:
    """Accept a connection. If there are already `most`, close one that waits for its client; if none waits, refuse."""
    connections = server.connections
    if len(connections) >= most:
        if (waiting := next(filter(_is_waiting, connections), None)) is None:
            return _Refusal()
        waiting.force_close()
    return server()


def _is_waiting(connection: web.RequestHandler) -> bool:
    """Return whether a connection waits for a request or for its body. aiohttp has no public way to ask this."""
    request = connection._current_request
    return connection._waiter is not None if request is None else not request.content.is_eof()


def _authorise(token: str | None) -> Any:
    @web.middleware
    async def authorised(request: web.Request, handler: _Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin", "")
        if (why := refusal(request.method, host, origin, has_token=token is not None)) is not None:
            raise web.HTTPForbidden(text=why)
        if token is not None:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise web.HTTPUnauthorized(text="a bearer token is required")
        return await handler(request)

    return authorised


@web.middleware
async def _with_status(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except TransferError as error:
        raise _STATUS.get(type(error), web.HTTPUnprocessableEntity)(text=str(error))


def _file(path: Path, what: str) -> web.StreamResponse:
    if not path.is_file():
        raise GoneError(f"the store holds no {what}")
    return web.FileResponse(path)


def _json(data: bytes) -> web.Response:
    return web.Response(body=data, content_type="application/json")


async def _body(request: web.Request, kind: type[_B]) -> _B:
    try:
        async with asyncio.timeout(BODY_S):
            return msgspec.json.decode(await request.read(), type=kind)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {BODY_S:g} s")
    except (ValueError, RuntimeError, web.RequestPayloadError) as error:  # RuntimeError: connection closed.
        raise web.HTTPBadRequest(text=f"the body cannot be read: {error}")
