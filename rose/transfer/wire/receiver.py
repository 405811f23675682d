"""Fetches and verifies versions into a staging folder. The next fetch uses what a failed fetch left in `partial/`."""

import fcntl
import functools
import hashlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rose import private_files
from rose.transfer.apply.staged import Staged
from rose.transfer.codec.header import HEADER_BYTES
from rose.transfer.errors import TransferError, of_run
from rose.transfer.layout.regions import Regions
from rose.transfer.package.manifest import Chunk, Manifest, Package, check_chain
from rose.transfer.wire.download import download, persist
from rose.transfer.wire.origin import GoneError, Origin, Pace, Route, open_origin
from rose.transfer.wire.origin_rules import ANYWHERE, OriginRules

_RENEWALS = 3  # Renewals of a pin while it lasts, with at least `_RENEWAL_S_MIN` in between.
_RENEWAL_S_MIN = 0.1
_MEASURED_BYTES = 1 << 18  # A fetch of at least this many bytes reports the rate of its link.
_LOCK = "lock"


class Receiver:
    """Fetches a run's versions, signed by `signer`. A request fails after `retries` retries without a new byte."""

    def __init__(
        self,
        url: str,
        token: str | None,
        staging: Path,
        *,
        run_id: str = "",
        signer: str | None = None,
        rules: OriginRules = ANYWHERE,
        retries: int = 5,
        pace: Pace = lambda _: None,
    ) -> None:
        self.url = url.rstrip("/")
        self.staging = staging
        self.name = f"{socket.gethostname()}-{_digest(str(staging.resolve()))}"
        self._token, self._run_id, self._signer, self._rules = token, run_id, signer, rules
        self._retries, self._pace = retries, pace
        self._partial = staging / "partial"
        with self._origin():  # This fails now if the URL is wrong.
            private_files.make(staging)
            self._partial.mkdir(exist_ok=True)

    def folder(self, version: int, have: int | None, regions: Regions | None = None) -> Path:
        part = ""
        if regions is not None:
            boxes = sorted((name, region.start, region.stop) for name, region in regions.items())
            part = f"-{_digest(json.dumps(boxes))}"
        return self.staging / f"{Package(version, have).stem}{part}"

    def fetch(self, version: int, have: int | None, regions: Regions | None = None) -> Staged:
        """Fetch and verify the shortest chain of packages from the version `have` (None: no version) to `version`.
        `regions` are the boxes that are needed (None: all). After a TransferError, a new call continues the fetch."""
        target = self.folder(version, have, regions)
        with (self._partial / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # One fetch at a time. The lock of a killed process is released.
            if target.exists():
                try:
                    staged = Staged.open(target, regions, signer=self._signer)
                    for chunk in (chunk for manifest in staged.manifests for chunk in manifest.chunks_for(regions)):
                        staged.chunk(chunk)  # Raises TransferError if it is missing.
                    self._check_run(staged.manifests)
                    return staged
                except TransferError:
                    shutil.rmtree(target)
            started_ns = time.monotonic_ns()
            with self._origin() as first, self._origin() as second:  # A failed origin object cannot be used again.
                try:
                    staged = self._stage(first, target, version, have, regions)
                except GoneError:
                    staged = self._stage(second, target, version, have, regions)
                wire_bytes = first.received_bytes + second.received_bytes
            fetch_ns = time.monotonic_ns() - started_ns - staged.verify_ns
            return replace(staged, wire_bytes=wire_bytes, fetch_ns=fetch_ns)

    def acknowledge(self, version: int, weights_sha256: str) -> None:
        with self._origin() as origin:
            persist(lambda: origin.acknowledge(self.name, version, weights_sha256), self._retries)

    def _origin(self) -> AbstractContextManager[Origin]:
        return closing(open_origin(self.url, self._token, self._pace, rules=self._rules))

    def _stage(self, origin: Origin, target: Path, version: int, have: int | None, regions: Regions | None) -> Staged:
        route = persist(lambda: origin.route(version, have), self._retries)
        ends = (route.packages[0].base_version, route.packages[-1].version) if route.packages else None
        if ends not in ((None, version), (have, version)):
            raise TransferError(f"{origin.url} sent packages (from, to) {ends}, expected {(have, version)}")
        with self._pinned(route) as rates, self._pool(origin) as (pool, stopped):

            def manifest(package: Package) -> bytes:
                return persist(functools.partial(origin.manifest_bytes, package), self._retries, stopped)

            def chunk(chunk: Chunk) -> None:
                download(origin, chunk, self._partial / chunk.sha256, retries=self._retries, stopped=stopped)

            received = list(pool.map(manifest, route.packages))
            verifying_ns = time.monotonic_ns()
            both = zip(received, route.packages, strict=True)
            manifests = [_manifest(data, package, self._signer) for data, package in both]
            self._check_run(manifests)
            check_chain(manifests)
            verify_ns = time.monotonic_ns() - verifying_ns
            chunks = {chunk.sha256: chunk for manifest in manifests for chunk in manifest.chunks_for(regions)}
            for path in self._partial.iterdir():
                if path.name not in (_LOCK, *chunks):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            began_s, before_bytes = time.monotonic(), origin.received_bytes
            done, _ = wait([pool.submit(chunk, part) for part in chunks.values()], return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            if (received_bytes := origin.received_bytes - before_bytes) >= _MEASURED_BYTES:
                rates.append(received_bytes / (time.monotonic() - began_s))
        self._complete(target, received, list(chunks))
        return Staged(folder=target, manifests=tuple(manifests), verify_ns=verify_ns)

    def _check_run(self, manifests: Sequence[Manifest]) -> None:
        for manifest in manifests:
            if manifest.run_id != self._run_id:
                raise TransferError(
                    f"version {manifest.version} at {self.url} is {of_run(manifest.run_id)}, expected one "
                    f"{of_run(self._run_id)}: give the URL of that run's own store"
                )

    @contextmanager
    def _pinned(self, route: Route) -> Iterator[list[float]]:
        """Renew the route's pin during the block, then release the pin. Yield a list, to which the block appends its
        rates of transfer (bytes/s). The origin gets the highest rate."""
        rates: list[float] = []
        if (pin := route.pin) is None:
            yield rates
            return
        done = threading.Event()

        def keep() -> None:
            with self._origin() as origin:
                while not done.wait(max(route.ttl_s / _RENEWALS, _RENEWAL_S_MIN)):
                    with suppress(TransferError):  # Without the pin the transfer may still succeed.
                        origin.renew(pin)
                with suppress(TransferError):  # The pin also expires.
                    origin.unpin(pin, max(rates, default=None))

        threading.Thread(target=keep, name="rose-pin", daemon=True).start()
        try:
            yield rates
        finally:
            done.set()

    @contextmanager
    def _pool(self, origin: Origin) -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
        stopped = threading.Event()
        with ThreadPoolExecutor(4, thread_name_prefix="rose-fetch") as pool:
            try:
                yield pool, stopped
            except BaseException:
                stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
                origin.interrupt()
                raise

    def _complete(self, target: Path, manifests: list[bytes], chunks: list[str]) -> None:
        building = self._partial / "building"
        try:
            (building / "chunks").mkdir(parents=True)
            for index, data in enumerate(manifests):
                (building / f"{index:02d}.json").write_bytes(data)
            for sha256 in chunks:
                (self._partial / sha256).rename(building / "chunks" / sha256)
            building.rename(target)
        except OSError as error:
            raise TransferError(f"cannot stage {target}: {error.strerror}; make room, or stage elsewhere")


def _manifest(data: bytes, package: Package, signer: str | None) -> Manifest:
    manifest = Manifest.from_bytes(data, signer=signer)
    if manifest.package != package:
        raise TransferError(f"asked for package {package.stem}, got {manifest.package.stem}")
    # No encoding is longer than the tensors themselves: this bounds the disk space that a forged manifest can fill.
    most = manifest.dense_bytes + HEADER_BYTES * len(manifest.pieces)
    if manifest.blob_bytes > most:
        raise TransferError(f"{package.stem} has chunks of {manifest.blob_bytes} bytes, expected at most {most}")
    return manifest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
