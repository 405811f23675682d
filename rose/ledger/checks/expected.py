"""The ledger's records about its own files: writers, keys, last events, and moved files."""

import hashlib
import threading
from contextlib import suppress
from pathlib import Path

from rose.ledger import verified
from rose.ledger.files import examine, layout, registry, rolled
from rose.ledger.files.examine import Seen
from rose.ledger.files.layout import LedgerError, Part
from rose.ledger.files.rolled import Coverage

COMPACTION_WRITER, COMPACTED_ACTION = "compaction", "compacted"
ROLL_UP_WRITER, ROLLED_UP_ACTION = "rollup", "rolled_up"
ARCHIVE_WRITER, ARCHIVED_ACTION, RESTORED_ACTION = "archive", "archived", "restored"
UPKEEP_WRITERS = (COMPACTION_WRITER, ARCHIVE_WRITER, ROLL_UP_WRITER)


class Records:
    """The events that record compaction and archiving. Thread-safe. They are read again if an event seems missing."""

    def __init__(self, root: Path, seen: Seen) -> None:
        self._root, self._seen = root, seen
        self._mutex = threading.Lock()
        self._read()

    def _read(self) -> None:
        merged = examine.recorded(self._root, COMPACTION_WRITER, COMPACTED_ACTION, self._seen)
        self._compacted = {detail["manifest_sha256"] for detail in merged}
        self.last_seqs: dict[str, int] = {}
        for detail in merged:
            self.last_seqs[detail["writer"]] = max(detail["last_seq"], self.last_seqs.get(detail["writer"], -1))
        self._archived: dict[str, bool] = {}
        self._manifests: dict[str, str] = {}
        self._last = ""
        for action, detail in examine.all_recorded(self._root, ARCHIVE_WRITER, self._seen):
            if action == RESTORED_ACTION or (action == ARCHIVED_ACTION and detail["deleted"]):
                self._last = detail["manifest_sha256"]
                self._archived[self._last] = action == ARCHIVED_ACTION
                self._manifests[self._last] = detail["file"].replace("compacted/", "").replace(".parquet", ".json")

    def lack(self, part: Part, manifest_sha256: str) -> str | None:
        """Return None if compaction and archive events explain why `part` is in its place, else a fault."""
        with self._mutex:
            if (fault := self._lack(part, manifest_sha256)) is not None:
                self._read()
                fault = self._lack(part, manifest_sha256)
            return fault

    def lost(self) -> list[str]:
        with self._mutex:
            if found := self._lost():
                self._read()
                found = self._lost()
            return found

    def _lost(self) -> list[str]:
        lost = []
        for manifest_sha256, archived in self._archived.items():
            name = self._manifests[manifest_sha256]
            # A killed archiving may have recorded its last part without moving it.
            states = ("archived", "compacted") if manifest_sha256 == self._last else ("archived",)
            if archived and not any((self._root / state / name).exists() for state in states):
                lost.append(f"archived/{name}")
        return lost

    def _lack(self, part: Part, manifest_sha256: str) -> str | None:
        if manifest_sha256 not in self._compacted:
            return "no compaction event names it: it was changed, or is foreign"
        archived = self._archived.get(manifest_sha256)
        if part.state == "archived" and archived is None:
            return "no archive event says that its file left the ledger"
        # A killed archiving may have recorded its last part without moving it.
        if archived is None or manifest_sha256 == self._last or archived == (part.state == "archived"):
            return None
        return f"the last archive event says that it was {'archived' if archived else 'restored'}"


class Expected:
    def __init__(self, root: Path, records: Records, before: verified.State | None) -> None:
        self.problem: str | None = None
        self.registry = b""
        self.lines: tuple[registry.Line, ...] = ()
        try:
            self.registry = registry.read(root)
            self.lines = registry.parse(self.registry)
        except LedgerError as error:
            self.problem = str(error)
        self.registered = None if self.problem else {line.writer for line in self.lines}
        #: The last seq of each writer in the newest generation; empty if none can be read.
        self.ends: dict[str, int] = {}
        with suppress(LedgerError):
            if (coverage := rolled.newest(root)) is not None:
                self.ends = {writer: seq - 1 for writer, (_, seq) in coverage.writers.items()}
        for writer, last_seq in records.last_seqs.items():
            self.ends[writer] = max(last_seq, self.ends.get(writer, -1))
        self.verified = {} if before is None else before.heads
        heads = {path.stem for path in (root / "heads").glob("*.json") if layout.WRITER_NAME.fullmatch(path.stem)}
        self.writers = sorted({*layout.writers(root), *heads, *(self.registered or ()), *self.ends, *self.verified})


def roll_up_faults(root: Path, seen: Seen) -> list[str]:
    while True:
        try:
            coverage = rolled.newest(root)
        except LedgerError as error:
            return [str(error)]
        problems = _roll_up_faults(root, coverage, seen)
        if not problems or rolled.newest(root) == coverage:
            return problems


def _roll_up_faults(root: Path, newest: Coverage | None, seen: Seen) -> list[str]:
    recorded = [detail["coverage_sha256"] for detail in examine.recorded(root, ROLL_UP_WRITER, ROLLED_UP_ACTION, seen)]
    problems = []
    for generation in rolled.generations(root):
        try:
            coverage = rolled.read(root, generation)
        except LedgerError as error:
            problems.append(str(error))
            continue
        if coverage is None:
            continue
        problems += rolled.faults(root, coverage, seen)
        if coverage.sha256 not in recorded:
            problems.append(f"{coverage.folder}/coverage.json: no roll-up event names it: it was changed")
    if recorded and (newest is None or newest.sha256 != recorded[-1]) and recorded[-1] not in _unfinished(root):
        problems.append(f"{rolled.FOLDER}: the newest generation that an event of a roll-up names is missing")
    for part in layout.archived_parts(root):
        if part.last > (-1 if newest is None else newest.writers.get(part.writer, (-1, 0))[0]):
            problems.append(f"{part.manifest}: its events were archived and are in no roll-up")
    return problems


def _unfinished(root: Path) -> set[str]:
    """Return the SHA-256 of each coverage file that a killed roll-up left. The next roll-up makes the file again."""
    unfinished = set()
    for path in (root / rolled.FOLDER).glob(".*.tmp/coverage.json"):
        try:
            unfinished.add(hashlib.sha256(path.read_bytes()).hexdigest())
        except FileNotFoundError:
            continue
    return unfinished
