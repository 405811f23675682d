"""What single trainer ranks wrote of a version that is not complete yet: the manifests of their own pieces.

parts/VERSION.ATTEMPT.RANK-of-RANKS.jsonl      one manifest in a line, for each package of the version
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.layout import make_folder, write_file
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.manifest import Manifest, merge_parts

_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Writer:
    """A trainer rank, one of `ranks` that publish together. `attempt` tells restarts of all of them apart.

    Raises ValueError for a rank out of range, or an attempt that is no short name.
    """

    rank: int = 0
    ranks: int = 1
    attempt: str = "0"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks or not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(f"rank {self.rank} of {self.ranks}, attempt {self.attempt!r}: expected a rank and a name")


class Parts:
    """The folder `parts` of a store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def write(self, version: int, writer: Writer, manifests: Sequence[Manifest]) -> None:
        """Keep a rank's part, in place of one that it wrote before. Raises OSError."""
        lines = b"\n".join(manifest.to_bytes() for manifest in manifests)
        write_file(self._path(version, writer, writer.rank), lines)

    def has(self, version: int, writer: Writer) -> bool:
        """Whether the rank's own part of a version that is not complete is there."""
        return self._path(version, writer, writer.rank).exists()

    def of_others(self, version: int, writer: Writer) -> list[list[Manifest]] | None:
        """The parts of the other ranks, None as long as one is missing."""
        paths = [self._path(version, writer, rank) for rank in range(writer.ranks) if rank != writer.rank]
        try:
            return [_read(path) for path in paths]
        except FileNotFoundError:
            return None

    def chunks(self) -> set[str]:
        """SHA-256 of all chunks that parts name."""
        parts = [manifest for path in self._folder.glob("*.jsonl") for manifest in _read(path)]
        return {chunk.sha256 for manifest in parts for chunk in manifest.chunks}

    def forget(self, version: int) -> None:
        """Remove the parts of a version and of earlier ones, of all attempts."""
        for path in self._folder.glob("*.jsonl"):
            if int(path.name.partition(".")[0]) <= version:
                path.unlink(missing_ok=True)

    def _path(self, version: int, writer: Writer, rank: int) -> Path:
        return self._folder / f"{version:08d}.{writer.attempt}.{rank:05d}-of-{writer.ranks:05d}.jsonl"


def merge(version: int, parts: Sequence[Sequence[Manifest]]) -> list[Manifest]:
    """The packages that all ranks wrote a part of: the delta, composites by their base, latest first, the anchor.

    Raises TransferError if there are none, or if the parts do not make up the version.
    """
    by_base = [{manifest.base_version: manifest for manifest in part} for part in parts]
    common = set.intersection(*(set(part) for part in by_base))
    if not common:
        raise TransferError(
            f"the parts of version {version} begin at versions {[list(part) for part in by_base]}, none of which all "
            "ranks have: publish the version that some ranks lack before this one"
        )
    order = sorted(common, key=lambda base: (base is None, -(base or 0)))
    return [merge_parts([part[base] for part in by_base]) for base in order]


def _read(path: Path) -> list[Manifest]:
    return [Manifest.from_bytes(line, whole=False) for line in path.read_bytes().splitlines()]
