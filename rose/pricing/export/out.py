"""Writing an export: its format by its name's suffix, nothing overwritten unasked, whole or not at all."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rose.ledger import layout
from rose.pricing.money import PricingError


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A file that was exported. `totals` are nano-dollars."""

    path: Path
    rows: int
    totals: Mapping[str, int]
    sha256: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return {**asdict(self), "path": str(self.path)}


def suffix_of(path: Path, known: Collection[str], what: str) -> str:
    """The suffix, which says the format. Raises PricingError for one that is not among `known`."""
    if path.suffix not in known:
        raise PricingError(f"{path}: {what} is written as {' or '.join(sorted(known))}, by the end of the file's name")
    return path.suffix


def refuse_existing(path: Path, force: bool) -> None:
    """Raises PricingError if the file cannot be written there; asked before the work as well as after it."""
    if path.is_dir():
        raise PricingError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise PricingError(f"{path} exists; name another file, or replace it with --force")
    if not path.parent.is_dir():
        raise PricingError(f"{path}: there is no folder {path.parent}; make it first")


def write(path: Path, force: bool, make: Callable[[Path], tuple[int, Mapping[str, int]]]) -> Written:
    """Have `make` write a file beside `path`, then give it the name. `make` returns rows and totals, nano-dollars.

    If it raises, nothing is at `path` that was not there. Raises PricingError if `path` cannot be written.
    """
    refuse_existing(path, force)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            # The suffix stays: readers of the format go by it.
            temporary = Path(folder) / path.name
            rows, totals = make(temporary)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = temporary.stat().st_size
            refuse_existing(path, force)
            layout.replace_file(temporary, path)
    except OSError as error:
        raise PricingError(f"{path} cannot be written: {error.strerror}") from error
    return Written(path=path, rows=rows, totals=totals, sha256=digest, bytes=size)
