"""What the files of a ledger say of which writers there are, with which keys, and how far each must go at least."""

from __future__ import annotations

from pathlib import Path

from rose.ledger import layout, verified
from rose.ledger.checks import registry, roll_ups
from rose.ledger.checks.records import Records
from rose.ledger.layout import LedgerError


class Expected:
    """What the files say of which writers there are, and of how far each must go at least."""

    def __init__(self, root: Path, records: Records, before: verified.State | None) -> None:
        self.problem: str | None = None
        #: The lines of the registry; None if there is none that can be read.
        self.lines: tuple[registry.Line, ...] | None = None
        #: The bytes of the registry; none if there is no registry.
        self.registry = b""
        try:
            if (content := registry.read_or_none(root)) is not None:
                self.registry = content
                self.lines = registry.parse(content)
        except LedgerError as error:
            self.problem = str(error)
        self.registered = None if self.lines is None else {line.writer for line in self.lines}
        self.ends = roll_ups.ends(root)
        for writer, last_seq in records.last_seqs.items():
            self.ends[writer] = max(last_seq, self.ends.get(writer, -1))
        self.verified = {} if before is None else before.heads
        heads = {path.stem for path in (root / "heads").glob("*.json") if layout.WRITER_NAME.fullmatch(path.stem)}
        named = {*heads, *(self.registered or ()), *self.ends, *self.verified}
        self.writers = sorted({*layout.writers(root), *named})
