"""Serve a run's weights from the trainer's process. The one part of the client that needs torch."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rose import private_files
from rose.client.address import ClientError

if TYPE_CHECKING:
    import torch

_ORIGIN = "origin.json"  # The store's last address and token: a returning engine finds the store there again.
_FETCHED_S, _LOOK_S = 3.0, 0.05  # Wait at the end for fetching engines. A dead engine leaves its pin behind.


class WeightOrigin:
    """Serves a run's versions in `folder` at `host`; `close` it once no engine fetches. `fence` is the publisher's
    number. Raises TransferError for the folder of another run or of a newer publisher."""

    def __init__(self, folder: Path, host: str, *, run_id: str, fence: int) -> None:
        try:
            from rose.runtime.transfer.store.store import Publisher, VersionStore
            from rose.runtime.transfer.wire.server import StoreServer
        except ModuleNotFoundError as error:
            raise ClientError(f"publishing weights needs {error.name}: install it beside your trainer") from None
        make_folder(folder)
        self._store = VersionStore(folder / "versions", run_id=run_id, fence=fence)
        self._store.check_run()
        self._publisher = Publisher(self._store)
        port, self.token = _last(folder / _ORIGIN)
        try:
            self._server = StoreServer(self._store, host, port, self.token).start()
        except OSError:
            try:
                self._server = StoreServer(self._store, host, 0, self.token).start()
            except OSError as error:
                raise ClientError(f"host {host!r} cannot be bound ({error.strerror}): give an address of this host")
        self.url = self._server.url
        self.fenced = False
        private_files.write(folder / _ORIGIN, json.dumps({"port": urlsplit(self.url).port or 0, "token": self.token}))

    def latest(self) -> int | None:
        return self._store.latest()

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Return once `version` can be fetched; the tensors may change then. Tensors on an accelerator are compared
        there. The newest version is not written again, and must hold the same weights. Raises TransferError."""
        import torch

        from rose.runtime.transfer.store.fence import FencedError

        # Other threads read the tensors; their streams do not wait for the caller's.
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        detached = {name: tensor.detach() for name, tensor in tensors.items()}
        if version == self._store.latest():
            self._store.check_published(version, detached)
            return
        try:
            self._publisher.publish(version, detached)
        except FencedError:
            self.fenced = True
            raise

    def weights_sha256(self, version: int) -> str:
        """Raises TransferError for a version that is not in the folder."""
        return self._store.weights_sha256(version)

    def close(self) -> None:
        self._publisher.wait()
        until = time.monotonic() + _FETCHED_S
        while any((self._store.folder / "pins").glob("*.json")) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        self._server.stop()


def make_folder(folder: Path) -> None:
    """Create the folder to publish from. Raises ClientError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClientError(
            f"folder {str(folder)!r} cannot be made ({error.strerror}): give another one, or leave it out"
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ClientError(f"folder {str(folder)!r} is not this user's to write to: give another one, or leave it out")


def address_towards(url: str) -> str:
    """Return this host's address as the server at `url` sees it. Raises ClientError if there is no route."""
    parts = urlsplit(url)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClientError(f"url {url!r} cannot be reached ({error.strerror}): correct it") from None


def _last(path: Path) -> tuple[int, str]:
    with suppress(OSError, ValueError, KeyError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        return int(kept["port"]), str(kept["token"])
    return 0, secrets.token_urlsafe(32)
