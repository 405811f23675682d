"""Parts of incomplete packages. The manifest of one trainer rank is the file parts/STEM.ATTEMPT.RANK-of-RANKS."""

import re
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.files.layout import make_folder, write_file
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest, Package

_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Writer:
    """A trainer rank that publishes its part. `attempt` names this start of the trainer. Raises ValueError."""

    rank: int = 0
    ranks: int = 1
    attempt: str = "0"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks or not _ATTEMPT.fullmatch(self.attempt):
            raise ValueError(f"rank {self.rank} of {self.ranks}, attempt {self.attempt!r}: the rank or name is wrong")


class Parts:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_folder(folder)

    def write(self, writer: Writer, part: Manifest) -> None:
        write_file(self._folder / _name(part.package.stem, writer, writer.rank), part.to_bytes())

    def has(self, version: int, writer: Writer) -> bool:
        return any(self._folder.glob(_name(f"{version:08d}-*", writer, writer.rank)))

    def of_others(self, package: Package, writer: Writer) -> list[Manifest] | None:
        others = [rank for rank in range(writer.ranks) if rank != writer.rank]
        try:
            return [_read(self._folder / _name(package.stem, writer, rank)) for rank in others]
        except FileNotFoundError:
            return None

    def check_base(self, package: Package, writer: Writer) -> None:
        for rank in range(writer.ranks):
            begun = {path.name for path in self._folder.glob(_name(f"{package.version:08d}-*", writer, rank))}
            if begun and _name(package.stem, writer, rank) not in begun:
                other = min(begun).partition(".")[0]
                raise TransferError(
                    f"rank {writer.rank} publishes {package.stem}, but rank {rank} has published {other}: first "
                    "publish the version that some ranks lack"
                )

    def chunks(self) -> set[str]:
        return {chunk.sha256 for path in self._all() for chunk in _read(path).chunks}

    def forget(self, package: Package) -> None:
        """Remove the parts of this complete package, and of earlier versions, from all attempts."""
        for path in self._all():
            if path.name.startswith(f"{package.stem}.") or int(path.name.partition("-")[0]) < package.version:
                path.unlink(missing_ok=True)

    def _all(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if not path.name.startswith(".")]


def _name(stem: str, writer: Writer, rank: int) -> str:
    return f"{stem}.{writer.attempt}.{rank:05d}-of-{writer.ranks:05d}"


def _read(path: Path) -> Manifest:
    return Manifest.from_bytes(path.read_bytes(), whole=False)
