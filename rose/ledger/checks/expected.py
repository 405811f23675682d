"""What the files of a ledger say of one another: its writers, their keys, how far each goes, and what was moved."""

import threading
from pathlib import Path

from rose.ledger import examine, layout, verified
from rose.ledger.checks import registry, roll_ups
from rose.ledger.examine import Seen
from rose.ledger.layout import LedgerError, Part

COMPACTION_WRITER, COMPACTED_ACTION = "compaction", "compacted"
ARCHIVE_WRITER, ARCHIVED_ACTION, RESTORED_ACTION = "archive", "archived", "restored"


class Records:
    """The records of compaction and archive on disk, read again if one seems to be missing. Threads may share it."""

    def __init__(self, root: Path, seen: Seen) -> None:
        self._root = root
        self._seen = seen
        self._mutex = threading.Lock()
        self._read()

    def _read(self) -> None:
        merged = examine.recorded(self._root, COMPACTION_WRITER, COMPACTED_ACTION, self._seen)
        self._compacted = {detail["manifest_sha256"] for detail in merged}
        self.last_seqs: dict[str, int] = {}
        for detail in merged:
            self.last_seqs[detail["writer"]] = max(detail["last_seq"], self.last_seqs.get(detail["writer"], -1))
        #: By manifest: whether it was archived last, or brought back.
        self._archived: dict[str, bool] = {}
        self._last = ""
        for action, detail in examine.all_recorded(self._root, ARCHIVE_WRITER, self._seen):
            if action == RESTORED_ACTION or (action == ARCHIVED_ACTION and detail["deleted"]):
                self._last = detail["manifest_sha256"]
                self._archived[self._last] = action == ARCHIVED_ACTION

    def lack(self, part: Part, manifest_sha256: str) -> str | None:
        """Return which event is missing for `part` to be where it is. Events are on disk before what they allow."""
        with self._mutex:
            if (fault := self._lack(part, manifest_sha256)) is not None:
                self._read()
                fault = self._lack(part, manifest_sha256)
            return fault

    def _lack(self, part: Part, manifest_sha256: str) -> str | None:
        if manifest_sha256 not in self._compacted:
            return "no event of the compaction says so; it was changed, or written by another"
        archived = self._archived.get(manifest_sha256)
        if part.state == "archived" and archived is None:
            return "no event of the archive says that its file was to leave the ledger"
        # A killed archiving may have recorded its last part without moving it.
        if archived is None or manifest_sha256 == self._last or archived == (part.state == "archived"):
            return None
        return f"the last event of the archive says that it was {'archived' if archived else 'brought back'}"


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
        self.ends = roll_ups.ends(root)
        for writer, last_seq in records.last_seqs.items():
            self.ends[writer] = max(last_seq, self.ends.get(writer, -1))
        self.verified = {} if before is None else before.heads
        heads = {path.stem for path in (root / "heads").glob("*.json") if layout.WRITER_NAME.fullmatch(path.stem)}
        named = {*heads, *(self.registered or ()), *self.ends, *self.verified}
        self.writers = sorted({*layout.writers(root), *named})
