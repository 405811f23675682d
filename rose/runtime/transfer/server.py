"""The origin: serves a store's packages over HTTP, read only.

    GET /v1/packages               {"packages": [{"version", "base_version", "blob_bytes"}, ...]}
    GET /v1/packages/STEM.json     a manifest
    GET /v1/packages/STEM.bin      its blob

Nothing that is sent can run code at the receiver: JSON, and bytes that are checked against it.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
from collections.abc import Awaitable, Callable

from aiohttp import web

from rose.runtime.transfer.manifest import Package
from rose.runtime.transfer.store import VersionStore

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(store: VersionStore, token: str | None) -> web.Application:
    """The aiohttp application, for a caller that has a server of its own."""

    @web.middleware
    async def authorised(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if token is not None:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                raise web.HTTPUnauthorized(text="a bearer token is required")
        return await handler(request)

    async def index(_: web.Request) -> web.Response:
        packages = [
            {"version": p.version, "base_version": p.base_version, "blob_bytes": p.blob_bytes} for p in store.packages()
        ]
        return web.json_response({"packages": packages})

    async def part(request: web.Request) -> web.StreamResponse:
        # Rebuilt from the parsed name, so that no path of the client's making reaches the file system.
        package = Package.parse(request.match_info["stem"])
        path = None if package is None else store.folder / f"{package.stem}.{request.match_info['kind']}"
        if path is None or not path.is_file():
            raise web.HTTPNotFound(text=f"no package {request.match_info['stem']!r}")
        return web.FileResponse(path)

    app = web.Application(middlewares=[authorised])
    app.router.add_get("/v1/packages", index)
    app.router.add_get("/v1/packages/{stem}.{kind:json|bin}", part)
    return app


class StoreServer:
    """Serves a store from a thread of its own until `stop`. Port 0 takes a free one; `url` says which.

    Raises ValueError for an address other hosts can reach without a token.
    """

    def __init__(self, store: VersionStore, host: str = "127.0.0.1", port: int = 0, token: str | None = None) -> None:
        if host not in _LOOPBACK and not token:
            raise ValueError(f"host {host!r} is reachable from other machines: give a token, or bind 127.0.0.1")
        self._app = make_app(store, token)
        self._host = host
        self._port = port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Base URL for receivers; valid once started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> StoreServer:
        """Serve; returns once the port is bound. Raises OSError if it cannot be."""
        assert self._thread is None, "already started"
        loop = asyncio.new_event_loop()
        runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=1.0)
        bound = threading.Event()
        failure: list[OSError] = []

        async def bind() -> None:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port).start()
            self._port = runner.addresses[0][1]

        def serve() -> None:
            try:
                loop.run_until_complete(bind())
            except OSError as error:
                failure.append(error)
            bound.set()
            if not failure:
                loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

        thread = threading.Thread(target=serve, name="rose-store-server", daemon=True)
        thread.start()
        bound.wait()
        if failure:
            thread.join()
            raise failure[0]
        self._loop, self._thread = loop, thread
        return self

    def stop(self) -> None:
        """Stop serving; transfers under way are cut after a second. Does nothing if not started."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop = self._thread = None

    def __enter__(self) -> StoreServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
