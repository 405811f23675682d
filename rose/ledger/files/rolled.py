"""A roll-up has daily sums of all events up to some seq of each writer. Each roll-up makes a new generation of files.

rollup/<generation>/coverage.json        the last epoch of each writer in the sums, and the SHA-256 of each file
rollup/<generation>/daily_<name>.parquet the sums, a file for each daily view
rollup/ids/<generation>.parquet          event ids of clients, each with the record that counts; never changed"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.files import examine, layout
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError

#: The daily views, each with sql/rollups/<name>.sql (an event's addition) and sql/views/daily/<name>.sql (the sums).
ROLLUPS = (
    *("daily_device_time", "daily_request", "daily_latency", "daily_lease", "daily_preemption", "daily_sync"),
    *("daily_turn", "daily_trajectory", "daily_verdict", "daily_event"),
)
CLIENT_ID = "client_id"
FOLDER = "rollup"
ID_FOLDER = f"{FOLDER}/ids"
FORM = 2  # Form of coverage.json and its files. Form 2 has the valid record beside each id.


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far one generation of sums reaches: `writers` has each writer's last epoch, and the first seq after it."""

    generation: int
    writers: dict[str, tuple[int, int]]
    files: dict[str, str]
    ids: dict[str, str]  # SHA-256 of each file of ids, by path relative to the ledger, oldest first.
    sha256: str  # SHA-256 of coverage.json, which the roll-up's event names.
    #: Whether it has this version's roll-ups and form; otherwise the next roll-up starts again from zero.
    complete: bool

    @property
    def folder(self) -> str:
        return folder(self.generation)


def folder(generation: int) -> str:
    return f"{FOLDER}/{generation:06d}"


def id_file(generation: int) -> str:
    return f"{ID_FOLDER}/{generation:06d}.parquet"


def is_id_file(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return suffix == "parquet" and layout.is_number(stem)


def generations(root: Path) -> list[int]:
    return sorted(int(name) for name in layout.names(root / FOLDER) if layout.is_number(name))


def faults(root: Path, coverage: Coverage, seen: Seen) -> Iterator[str]:
    sums = {f"{coverage.folder}/{name}.parquet": sha256 for name, sha256 in coverage.files.items()}
    for path, sha256 in (sums | coverage.ids).items():
        try:
            if seen.facts(root / path, "sha256", examine.sha256_of) != sha256:
                yield f"{path}: its bytes were changed after it was written"
        except OSError as error:
            if (root / coverage.folder / "coverage.json").exists():
                missing = isinstance(error, FileNotFoundError)
                yield f"{path}: it {'is missing' if missing else f'cannot be read ({error.strerror})'}"


def newest(root: Path) -> Coverage | None:
    # It may be replaced between the two looks.
    for _ in range(3):
        if not (numbers := generations(root)):
            return None
        if (coverage := read(root, numbers[-1])) is not None:
            return coverage
    raise LedgerError(f"{root / FOLDER} has a generation without coverage.json; remove its folder")


def read(root: Path, generation: int) -> Coverage | None:
    path = root / folder(generation) / "coverage.json"
    try:
        stored = path.read_bytes()
        content = json.loads(stored)
        writers = {writer: (int(epoch), int(seq)) for writer, (epoch, seq) in content["writers"].items()}
        files = dict(content["files"])
        complete = content.get("form") == FORM and set(files) == set(ROLLUPS)
        ids = {id_file(int(number)): sha256 for number, sha256 in content.get("ids", {}).items()}
        return Coverage(generation, writers, files, ids, hashlib.sha256(stored).hexdigest(), complete)
    except FileNotFoundError:
        return None
    except (IsADirectoryError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"{path} is damaged; remove {path.parent}: the next roll-up makes it again") from error
