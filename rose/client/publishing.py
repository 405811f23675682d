"""Publishes the weights of a run from the trainer's process. It needs torch."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rose.client.address import ClientError
from rose.client.ranks import Ranks

if TYPE_CHECKING:
    import torch

    from rose.transfer.sources.published import Source, Weights

_KEY = "publisher.key"  # Signs manifests, for all ranks and for a resumed run.
_FETCHED_S, _POLL_S = 3.0, 0.05  # Wait at the end for fetching engines. A dead engine leaves its pin behind.


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """A published version. Tensors in `merged` were changed by a LoRA adapter. Tensors in `rounded` got a new type."""

    version: int
    merged: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()


class WeightOrigin:
    """Publishes versions from `folder`, together with the other ranks. Raises TransferError if the folder is in use."""

    def __init__(
        self,
        folder: Path,
        host: str,
        *,
        run_id: str,
        fence: int,
        ranks: Ranks | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self._ranks = ranks or Ranks()
        self.fenced = False
        self.url = self.token = self.signer = ""
        self._ranks.share(lambda: make_folder(folder) if self._ranks.leads else None)
        self._ranks.check_folder(folder)
        self._ranks.share(lambda: self._open(folder, run_id, fence, checkpoint))
        self._ranks.share(lambda: self._serve(host) if self._ranks.leads else None)

    def _open(self, folder: Path, run_id: str, fence: int, checkpoint: Path | None) -> None:
        try:
            from rose.ledger.files import keys
            from rose.transfer.sources.checkpoint import Checkpoint
            from rose.transfer.store.store import Publisher, VersionStore
        except ModuleNotFoundError as error:
            raise ClientError(f"publishing weights needs {error.name}: install it where your trainer runs") from None
        self._checkpoint = None if checkpoint is None else Checkpoint(checkpoint)
        if (key := keys.load_or_make(folder / _KEY)) is None:
            raise ClientError(f"no signing key can be written to {folder}: make room, or give another folder")
        self.signer = key.public
        self._store = VersionStore(folder / "versions", run_id=run_id, fence=fence, key=key)
        self._store.check_run()
        self.latest, self.weights_sha256 = self._store.latest, self._store.weights_sha256
        self._publisher = Publisher(self._store)

    def _serve(self, host: str) -> None:
        from rose.transfer.wire.server import StoreServer

        self.token = secrets.token_urlsafe(32)
        try:
            self._server = StoreServer(self._store, host, 0, self.token).start()
        except OSError as error:
            raise ClientError(f"host {host!r} cannot be bound ({error.strerror}): give an address of this host")
        self.url = self._server.url

    def publish(self, weights: Weights, version: int) -> Publication:
        """All ranks call this at once to publish a version. If one fails, all raise its error and publish nothing."""
        from rose.transfer.package.parts import Writer
        from rose.transfer.sources.published import read
        from rose.transfer.sources.sharing import Offer, cuts, offers, share
        from rose.transfer.store.fence import FencedError

        sources: list[Source] = []

        def offer() -> tuple[str, list[Offer]]:
            sources.append(read(weights, self._checkpoint, self._newest))
            return secrets.token_hex(8), offers(sources[0].tensors)

        def write() -> None:
            boxes = share([offered for _, offered in everywhere], sources[0].names)[self._ranks.rank]
            writer = Writer(self._ranks.rank, self._ranks.size, attempt=everywhere[0][0])
            try:
                self._publisher.publish(version, cuts(sources[0].tensors, boxes), writer)
            except FencedError:
                self.fenced = True
                raise

        everywhere = self._ranks.share(offer)
        self._ranks.share(write)
        return Publication(version=version, merged=sources[0].merged, rounded=sources[0].rounded)

    def _newest(self) -> tuple[int, Mapping[str, torch.Tensor]]:
        self._publisher.wait()
        return self._store.newest()

    def wait(self) -> None:
        self._publisher.wait()

    def close(self) -> None:
        self.wait()
        if not self._ranks.leads:
            return
        until = time.monotonic() + _FETCHED_S
        while any((self._store.folder / "pins").glob("*.json")) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._server.stop()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(f"folder {str(folder)!r} cannot be created ({error.strerror}): give another folder") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ClientError(f"folder {str(folder)!r} is not writable for this user: give another folder, or none")


def address_towards(url: str) -> str:
    """Return the address from which this host connects to the server at `url`. Raises ClientError."""
    parts = urlsplit(url)
    try:
        addresses = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClientError(f"url {url!r} cannot be reached ({error.strerror}): correct it") from None
