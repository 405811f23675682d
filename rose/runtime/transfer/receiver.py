"""Fetches versions over HTTP into a staging folder, verified. It knows packages and hashes, not tensors."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, Package, check_chain, plan
from rose.runtime.transfer.staged import Staged

_CHUNK_BYTES = 1 << 20
#: Larger than any index or manifest: about 400 bytes for each tensor.
_JSON_BYTES_MAX = 256 << 20


@dataclass(slots=True)
class _Meter:
    """What one fetch has cost so far."""

    started_ns: int = field(default_factory=time.monotonic_ns)
    wire_bytes: int = 0
    verify_ns: int = 0

    @contextmanager
    def verifying(self) -> Iterator[None]:
        before_ns = time.monotonic_ns()
        yield
        self.verify_ns += time.monotonic_ns() - before_ns


class Receiver:
    """Pulls from the origin at `url` (http or https) into folders under `staging`, such as one in /dev/shm.

    `timeout_s` bounds each wait for the network, not the whole transfer.
    """

    def __init__(self, url: str, token: str | None, staging: Path, *, timeout_s: float = 30.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"store URL {url!r} is not http://HOST:PORT or https://HOST:PORT")
        self.url = url.rstrip("/")
        self.staging = staging
        self._prefix = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._secure = parts.scheme == "https"
        self._address = (parts.hostname, parts.port)
        self._timeout_s = timeout_s
        staging.mkdir(parents=True, exist_ok=True)

    def latest(self) -> int | None:
        """The newest version the origin holds, or None. Raises TransferError."""
        with self._connection() as connection:
            return max((package.version for package in self._packages(connection, _Meter())), default=None)

    def folder(self, version: int, have: int | None) -> Path:
        """Where `fetch` stages this way, so that another process can `Staged.open` it."""
        return self.staging / Package(version, have).stem

    def fetch(self, version: int, have: int | None) -> Staged:
        """Stage the cheapest way from version `have` (None: nothing) to `version`, and verify it.

        That may be one delta, a chain of them, or an anchor with the deltas after it. A folder staged before is
        checked and used again. Raises TransferError when the origin cannot be reached, has no such version, breaks
        off, or sends what does not match its hashes; nothing is staged then, and the call can be repeated.
        """
        target = self.folder(version, have)
        if target.exists():
            try:
                return Staged.open(target)
            except TransferError:
                shutil.rmtree(target)
        partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".partial", dir=self.staging))
        try:
            meter = _Meter()
            with self._connection() as connection:
                packages = plan(self._packages(connection, meter), version, have)
                manifests = [
                    self._package(connection, package, partial / f"{index:02d}", meter)
                    for index, package in enumerate(packages)
                ]
            with meter.verifying():
                check_chain(manifests)
            try:
                partial.rename(target)
            except OSError as error:
                if not target.exists():
                    raise TransferError(f"cannot stage version {version} as {target}: {error.strerror}")
                return replace(Staged.open(target), wire_bytes=meter.wire_bytes)  # Another receiver was first.
            return Staged(
                folder=target,
                manifests=tuple(manifests),
                wire_bytes=meter.wire_bytes,
                fetch_ns=time.monotonic_ns() - meter.started_ns - meter.verify_ns,
                verify_ns=meter.verify_ns,
            )
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(*self._address, timeout=self._timeout_s)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise TransferError(f"transfer from {self.url} broke off ({reason}); nothing was staged, try again")
        finally:
            connection.close()

    def _packages(self, connection: http.client.HTTPConnection, meter: _Meter) -> list[Package]:
        body = self._get_json(connection, "/v1/packages", meter)
        try:
            return [
                Package(
                    int(item["version"]),
                    None if item["base_version"] is None else int(item["base_version"]),
                    int(item["blob_bytes"]),
                )
                for item in json.loads(body)["packages"]
            ]
        except (ValueError, TypeError, KeyError) as error:
            raise TransferError(f"{self.url}/v1/packages is not a list of packages ({error}); is this a weight store?")

    def _package(self, connection: http.client.HTTPConnection, package: Package, path: Path, meter: _Meter) -> Manifest:
        """Fetch one package to `path`.json and `path`.bin."""
        data = self._get_json(connection, f"/v1/packages/{package.stem}.json", meter)
        with meter.verifying():
            manifest = Manifest.from_bytes(data)
            if (manifest.version, manifest.base_version) != (package.version, package.base_version):
                raise TransferError(f"asked for package {package.stem}, got {manifest.package.stem}")
        path.with_suffix(".json").write_bytes(data)
        sha256 = hashlib.sha256()
        with path.with_suffix(".bin").open("wb") as file:
            for chunk in self._get(connection, f"/v1/packages/{package.stem}.bin", manifest.blob_bytes, meter):
                with meter.verifying():
                    sha256.update(chunk)
                file.write(chunk)
        if sha256.hexdigest() != manifest.blob_sha256:
            raise TransferError(
                f"blob of package {package.stem} has SHA-256 {sha256.hexdigest()}, expected {manifest.blob_sha256}"
            )
        return manifest

    def _get_json(self, connection: http.client.HTTPConnection, path: str, meter: _Meter) -> bytes:
        return b"".join(bytes(chunk) for chunk in self._get(connection, path, None, meter))

    def _get(
        self, connection: http.client.HTTPConnection, path: str, expected_bytes: int | None, meter: _Meter
    ) -> Iterator[memoryview]:
        """The body in chunks, each valid until the next; exactly as long as announced and expected."""
        connection.request("GET", self._prefix + path, headers=self._headers)
        response = connection.getresponse()
        if response.status != 200:
            detail = response.read(200).decode(errors="replace")
            raise TransferError(f"{self.url}{path} answered {response.status} {response.reason}: {detail}")
        announced = response.length
        if announced is None or (expected_bytes is None and announced > _JSON_BYTES_MAX):
            raise TransferError(f"{self.url}{path} announces {announced} bytes; is this a weight store?")
        if expected_bytes is not None and announced != expected_bytes:
            raise TransferError(f"{self.url}{path} announces {announced} bytes, expected {expected_bytes}")
        buffer = memoryview(bytearray(min(announced, _CHUNK_BYTES)))
        received = 0
        while received < announced:
            count = response.readinto(buffer)
            if not count:
                raise TransferError(
                    f"{self.url}{path} broke off after {received} of {announced} bytes; nothing was staged, try again"
                )
            received += count
            meter.wire_bytes += count
            yield buffer[:count]
        response.read()  # Marks the response as read, so that the connection takes the next request.
