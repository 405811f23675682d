"""Writes an export completely or not at all, and makes HTML pages. An existing file is never overwritten."""

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2

from rose.ledger.files import layout
from rose.pricing.money import PricingError
from rose.pricing.table import Table
from rose.terminal import visible_lines

Progress = Callable[[int, int], None]  #: Receives the finished and the whole amount of work.


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """An exported file. Its `totals` are in nano-dollars."""

    path: Path
    rows: int
    totals: Mapping[str, int]
    sha256: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def check(path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise PricingError if the path has a wrong suffix or cannot be used. Call this before any work."""
    if suffixes and path.suffix not in suffixes:
        raise PricingError(f"{path} must end in {' or '.join(sorted(suffixes))}: the end of its name says the format")
    if path.is_dir():
        raise PricingError(f"{path} is a folder; name a file in it")
    if path.exists():
        raise PricingError(f"{path} exists; name another file, or remove it first")
    if not path.parent.is_dir():
        raise PricingError(f"folder {path.parent} of {path} does not exist; create it first")


def write(path: Path, make: Callable[[Path], tuple[int, Mapping[str, int]]]) -> Written:
    """Write a file with `make`, then rename it. `make` returns (rows, nano-dollar totals). Raises PricingError."""
    check(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            temporary = Path(folder) / path.name  # Writers choose the format by the suffix.
            rows, totals = make(temporary)
            with temporary.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = temporary.stat().st_size
            check(path)
            layout.replace_file(temporary, path)
    except OSError as error:
        raise PricingError(f"{path} cannot be written: {error.strerror}") from error
    return Written(path=path, rows=rows, totals=totals, sha256=digest, bytes=size)


def page(title: str, parts: Iterable[Table | str], warnings: Iterable[str] = ()) -> str:
    """Return an HTML page. All text is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rose.pricing.export", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    return environment.get_template("page.html.j2").render(title=title, warnings=[*warnings], parts=list(parts))


def _shown(value: Any) -> Any:
    return visible_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
