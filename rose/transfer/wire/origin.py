"""Origins of versions. An origin is an HTTP server, or a store's files in a folder or in an object store."""

from __future__ import annotations

import functools
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import INDEX_BYTES_MAX, MANIFEST_BYTES_MAX, Chunk, Package, plan, read_index
from rose.transfer.wire.connections import Connections
from rose.transfer.wire.origin_rules import ANYWHERE, OriginRules

BLOCK_BYTES = 256 << 10  # Received, hashed and written at a time; a broken transfer loses no more than this.
_ANSWER_BYTES_MAX = 1 << 20  # The largest answer to a request for a pin: few packages lead to a version.
Pace = Callable[[int], object]  # It gets the size of each received block, and may wait.
PIN = re.compile(r"[A-Za-z0-9_-]{1,64}")  # Valid names of a pin.


class GoneError(TransferError):
    """The origin does not have the requested data."""


class RefusedError(TransferError):
    """The receiver drifted: the origin has other weights for the version that the receiver acknowledged."""


class BrokenError(TransferError):
    """The connection or the origin failed; the same request may succeed later."""


@dataclass(frozen=True, slots=True)
class Route:
    packages: tuple[Package, ...]
    pin: str | None = None  # None if the origin has no pins.
    ttl_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # The pin ends this long after its last renewal.

    @classmethod
    def from_bytes(cls, data: bytes) -> Route:
        try:
            route = msgspec.json.decode(data, type=cls)
            if route.pin is not None and not PIN.fullmatch(route.pin):
                raise ValueError(f"pin {route.pin!r} is not a valid id")
        except ValueError as error:
            raise TransferError(f"this is not the answer to a request for a pin ({error}); is this a weight store?")
        return route


class _Origin:
    """A source of weights. Methods are thread-safe, and raise GoneError, BrokenError or TransferError."""

    def __init__(self, url: str, pace: Pace) -> None:
        self.url = url.rstrip("/")
        self.received_bytes = 0  # Bytes of bodies.
        self._pace = pace
        self._counting = threading.Lock()

    def _count_received(self, count_bytes: int) -> None:
        with self._counting:
            self.received_bytes += count_bytes
        self._pace(count_bytes)


def open_origin(
    url: str, token: str | None, pace: Pace = lambda _: None, *, rules: OriginRules = ANYWHERE, timeout_s: float = 30.0
) -> Origin:
    """Return the origin at `url`. A wait takes at most `timeout_s`. Raises TransferError if `rules` refuse the URL."""
    parts = rules.check_url(url)
    if parts.scheme in ("http", "https"):
        return HttpOrigin(url, token, pace, rules, timeout_s)
    if token is not None:
        raise TransferError(f"give no token for origin {url!r}: fsspec reads its credentials from its own settings")
    return FsspecOrigin(url, pace)


class HttpOrigin(_Origin):
    def __init__(self, url: str, token: str | None, pace: Pace, rules: OriginRules, timeout_s: float) -> None:
        super().__init__(url, pace)
        parts = rules.check_url(url)
        host = parts.hostname
        assert host is not None, "checked by the rules"
        self._quotes = rules.quotes
        check = functools.partial(rules.check_address, host)
        self.connections = Connections(parts.scheme, host, parts.port, timeout_s, check)
        self._prefix = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def packages(self) -> list[Package]:
        return read_index(self._fetch("GET", "/v1/packages", bytes_max=INDEX_BYTES_MAX))

    def manifest_bytes(self, package: Package) -> bytes:
        return self._fetch("GET", f"/v1/packages/{package.stem}.json", bytes_max=MANIFEST_BYTES_MAX)

    def manifest_tag(self, package: Package) -> str:
        """Return a text that changes when the manifest changes."""
        if (tag := self._head(f"/v1/packages/{package.stem}.json").get("ETag")) is None:
            raise TransferError(f"{self.url} sends no ETag for {package.stem}; is this a weight store?")
        return tag

    def chunk_bytes(self, sha256: str) -> int:
        size = self._head(f"/v1/chunks/{sha256}").get("Content-Length", "")
        if not size.isdecimal():
            raise TransferError(f"{self.url} does not say how large chunk {sha256} is; is this a weight store?")
        return int(size)

    def read_chunk(self, chunk: Chunk, offset: int) -> Iterator[memoryview]:
        """Yield unchecked blocks of bytes, from byte `offset` on. A block is valid until the next one."""
        path = f"/v1/chunks/{chunk.sha256}"
        with self._response("GET", path, headers={"Range": f"bytes={offset}-"} if offset else {}) as response:
            skip = 0 if response.status == 206 else offset  # With status 200, a proxy on the way ignores ranges.
            expected = chunk.size_bytes - offset + skip
            span = f"bytes {offset}-{chunk.size_bytes - 1}/{chunk.size_bytes}"
            elsewhere = response.status == 206 and response.headers["Content-Range"] != span
            if response.length != expected or elsewhere:
                raise TransferError(f"{self.url}{path} announces {response.length} bytes, expected {expected} ({span})")
            for block in self._blocks(path, response, expected):
                if len(block) > skip:
                    yield block[skip:]
                skip = max(0, skip - len(block))

    def route(self, version: int, have: int | None) -> Route:
        return Route.from_bytes(self._fetch("POST", "/v1/pins", {"version": version, "have": have}))

    def renew(self, pin: str) -> None:
        self._fetch("PUT", f"/v1/pins/{pin}")

    def unpin(self, pin: str, bytes_per_s: float | None = None) -> None:
        rate = "" if bytes_per_s is None else f"?bytes_per_s={bytes_per_s:.0f}"
        self._fetch("DELETE", f"/v1/pins/{pin}{rate}")

    def acknowledge(self, receiver: str, version: int, weights_sha256: str) -> None:
        self._fetch("POST", "/v1/acks", {"receiver": receiver, "version": version, "weights_sha256": weights_sha256})

    def interrupt(self) -> None:
        """Make every thread that waits for the network raise BrokenError, now and later."""
        self.connections.interrupt()

    def close(self) -> None:
        self.connections.close()

    def _head(self, path: str) -> http.client.HTTPMessage:
        with self._response("HEAD", path) as response:
            response.read()
            return response.headers

    def _fetch(
        self, method: str, path: str, body: dict[str, object] | None = None, *, bytes_max: int = _ANSWER_BYTES_MAX
    ) -> bytes:
        with self._response(method, path, body) as response:
            if response.length is None or response.length > bytes_max:
                raise TransferError(f"{self.url}{path} announces {response.length} bytes; is this a weight store?")
            return b"".join(bytes(block) for block in self._blocks(path, response, response.length))

    @contextmanager
    def _response(
        self, method: str, path: str, body: dict[str, object] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        try:
            connection = self.connections.take()
        except http.client.InvalidURL:
            raise self._unsendable() from None
        response = None
        data = None if body is None else json.dumps(body).encode()
        sent = {**self._headers, **(headers or {}), **({} if data is None else {"Content-Type": "application/json"})}
        try:
            response = self._send(connection, method, self._prefix + path, data, sent)
            yield self._check_status(path, response)
        finally:
            if response is None or not response.isclosed():
                connection.close()
            self.connections.give_back(connection)

    def _send(self, connection: http.client.HTTPConnection, *request: Any) -> http.client.HTTPResponse:
        kept = connection.sock is not None
        try:
            connection.request(*request)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if kept and isinstance(error, ConnectionError):
                connection.close()  # The server had closed an idle connection.
                return self._send(connection, *request)
            raise self._broken(error)
        except ValueError:
            raise self._unsendable() from None

    def _check_status(self, path: str, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        if response.status in (200, 206):
            return response
        message = f"{self.url}{path} answered {response.status}"
        if self._quotes:
            try:
                message += f" {response.reason}: {response.read(500).decode(errors='replace')}"
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(error)
        if response.status == 404:
            raise GoneError(message)
        if response.status == 409:
            raise RefusedError(message)
        raise BrokenError(message) if response.status >= 500 else TransferError(message)

    def _blocks(self, path: str, response: http.client.HTTPResponse, expected: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(expected, BLOCK_BYTES)))
        received = 0
        while received < expected:
            try:
                count = response.readinto(buffer[: expected - received])
            except (OSError, http.client.HTTPException) as error:
                raise self._broken(error)
            if not count:
                raise BrokenError(f"{self.url}{path} broke off after {received} of {expected} bytes; try again")
            received += count
            self._count_received(count)
            yield buffer[:count]
        response.read()  # Marks it as read, so that the connection takes the next request.

    def _unsendable(self) -> TransferError:  # Python's own message may show the token.
        return TransferError(f"{self.url} cannot be requested: correct its host name, its path or the token")

    def _broken(self, error: Exception) -> BrokenError:
        return BrokenError(f"transfer from {self.url} broke off ({error or type(error).__name__}); try again")


class FsspecOrigin(_Origin):
    """The folder of a store, or a copy of it in an object store. It has no pins and no acknowledgements."""

    def __init__(self, url: str, pace: Pace) -> None:
        super().__init__(url, pace)
        import fsspec

        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except Exception as error:  # Each kind of storage has errors of its own.
            raise TransferError(f"cannot open {url}: {error or type(error).__name__}")
        self._root: str = path.rstrip("/")

    def packages(self) -> list[Package]:
        return read_index(self._json_file("index.json", INDEX_BYTES_MAX))

    def manifest_bytes(self, package: Package) -> bytes:
        return self._json_file(f"{package.stem}.json", MANIFEST_BYTES_MAX)

    def manifest_tag(self, package: Package) -> str:
        return str(self._call("ukey", f"{package.stem}.json"))

    def chunk_bytes(self, sha256: str) -> int:
        return int(self._call("info", _chunk_name(sha256))["size"])

    def read_chunk(self, chunk: Chunk, offset: int) -> Iterator[memoryview]:
        name = _chunk_name(chunk.sha256)
        while offset < chunk.size_bytes:
            end = min(offset + (4 << 20), chunk.size_bytes)  # Each block is a request of its own.
            block = self._call("cat_file", name, start=offset, end=end)
            if len(block) != end - offset:
                raise TransferError(f"{self.url}/{name} ends at byte {offset + len(block)} of {chunk.size_bytes}")
            self._count_received(len(block))
            yield memoryview(block)
            offset = end

    def route(self, version: int, have: int | None) -> Route:
        return Route(tuple(plan(self.packages(), version, have)))

    def renew(self, pin: str) -> None: ...

    def unpin(self, pin: str, bytes_per_s: float | None = None) -> None: ...

    def acknowledge(self, receiver: str, version: int, weights_sha256: str) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...

    def _json_file(self, name: str, bytes_max: int) -> bytes:
        data: bytes = self._call("cat_file", name, start=0, end=bytes_max + 1)
        if len(data) > bytes_max:
            raise TransferError(f"{self.url}/{name} is larger than {bytes_max} bytes; is this a weight store?")
        self._count_received(len(data))
        return data

    def _call(self, method: str, name: str, **options: int) -> Any:
        try:
            return getattr(self._fs, method)(f"{self._root}/{name}", **options)
        except FileNotFoundError:
            raise GoneError(f"{self.url} holds no {name}")
        except PermissionError as error:
            raise TransferError(f"no permission to read {self.url}/{name}: {error}")
        except Exception as error:  # Each kind of storage has errors of its own.
            raise BrokenError(f"transfer from {self.url}/{name} broke off ({error or type(error).__name__}); try again")


Origin = HttpOrigin | FsspecOrigin


def _chunk_name(sha256: str) -> str:
    return f"chunks/{sha256[:2]}/{sha256}"
