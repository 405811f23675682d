"""What is on record of the weights that an engine holds, beside what is staged for it: for its audits, which read
`held-<version>.json`, and for the agent after this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Manifest


class HeldRecord:
    """One engine's, in its staging folder."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._next = staging / "next.json"

    def announce(self, manifest: Manifest) -> None:
        """From now on the engine may hold this, or what is on record already. Raises TransferError if there is no
        room."""
        partial = self._staging / "next.partial"
        try:
            partial.write_bytes(manifest.to_bytes())
            partial.replace(self._next)
        except OSError as error:
            raise TransferError(f"{self._staging} cannot be written ({error.strerror}): make room")

    def confirm(self, version: int) -> None:
        """The engine holds what was announced last, which is this version."""
        for stale in self._staging.glob("held-*.json"):
            stale.unlink()
        self._next.replace(self._path(version))

    def manifest(self, version: int) -> Manifest:
        """Of the version that the engine holds. Raises OSError, TransferError."""
        return Manifest.from_bytes(self._path(version).read_bytes())

    def candidates(self) -> Iterator[Manifest]:
        """What an engine may hold whose agent has ended, each on record as held once it is taken from here: first what
        it was known to hold. Raises OSError, TransferError."""
        for path in sorted(self._staging.glob("held-*.json")):
            yield Manifest.from_bytes(path.read_bytes())
        if self._next.exists():
            announced = Manifest.from_bytes(self._next.read_bytes())
            self.confirm(announced.version)
            yield announced

    def _path(self, version: int) -> Path:
        return self._staging / f"held-{version}.json"
