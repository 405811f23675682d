"""Up to when a ledger was verified: the record that `verify` leaves, and what it saw, for one that goes on from there.

verified/state.json      when, by whom, up to which segment of each writer, and whether anything was wrong
verified/files.json      what each file said, and the size, inode and times it had then

Whoever may write to the ledger may write these too. A full verification trusts neither, but for asking that the
segments of the last one still be there; an incremental one takes a file for the one it saw by its size, inode and
times.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from rose.clock import iso, utc_us
from rose.ledger import layout
from rose.ledger.examine import Manifest, Rows, Seen, Segment
from rose.ledger.layout import LedgerError

FOLDER = "verified"
#: Of each file; another version's is as good as none.
_FORMAT, _FILES_FORMAT = 1, 5
#: What a look at a file returns that is no plain value, by the first word of its kind.
_FACTS: dict[str, TypeAdapter[Any]] = {
    "segment": TypeAdapter(Segment),
    "rows": TypeAdapter(Rows),
    "manifest": TypeAdapter(Manifest),
    "events": TypeAdapter(list[tuple[int, str, Any]]),
}


class State(BaseModel):
    """The outcome of the last verification. Times are UTC microseconds since the Unix epoch."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    #: When it began: what was on disk then is covered.
    until_us: int
    #: When the last one began that read every byte; None if none has.
    full_until_us: int | None
    problems: int
    events: int
    #: Who ran it, as user@host.
    by: str
    #: The newest segment of each writer that was sound.
    heads: dict[str, str]
    #: Structures that could not be checked.
    unchecked: int = 0

    @property
    def sound(self) -> bool:
        """Whether everything was checked and nothing was wrong."""
        return self.problems == 0 and self.unchecked == 0

    @property
    def text(self) -> str:
        """One line for people."""
        outcome = "sound" if self.sound else f"NOT CHECKED, {self.unchecked} structures that this version cannot read"
        if self.problems:
            outcome = f"NOT SOUND, {self.problems} problems"
        if self.full_until_us == self.until_us:
            how = "every byte read"
        elif self.full_until_us is None:
            how = "new and changed files read"
        else:
            how = f"every byte read until {iso(self.full_until_us)}, new and changed files since"
        return f"verified until {iso(self.until_us)}: {outcome} ({how})"

    def to_json(self) -> dict[str, Any]:
        """For documents that show figures of the ledger."""
        full = None if self.full_until_us is None else iso(self.full_until_us)
        return {"until": iso(self.until_us), "sound": self.sound, "problems": self.problems, "every_byte_until": full}


def state(root: Path | str) -> State | None:
    """The outcome of the last verification of the ledger at `root`; None if there is none that can be read."""
    try:
        content = json.loads((Path(root) / FOLDER / "state.json").read_bytes())
        return State.model_validate(content) if content.pop("format") == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def text(root: Path | str) -> str:
    """One line on up to when the ledger at `root` was verified."""
    return "never verified; run `rose ledger verify`" if (last := state(root)) is None else last.text


def leave(root: Path, result: State) -> None:
    """Leave the outcome of a verification. A folder that may not be written stays as it is."""
    _write(root, "state.json", {"format": _FORMAT, **result.model_dump()})


def save(root: Path | str, seen: Seen) -> None:
    """Keep what a verification saw for the next one. A folder that may not be written stays as it is."""
    root = layout.check(root)
    with seen.lock:
        known = [
            [kind, str(Path(path).relative_to(root)), list(stamp), _plain(facts)]
            for (kind, path), (stamp, facts) in seen.entries.items()
        ]
        full_until_us = seen.full_until_us
    content = {"format": _FILES_FORMAT, "saved_us": utc_us(), "full_until_us": full_until_us, "known": known}
    _write(root, "files.json", content)


def load(root: Path | str) -> Seen:
    """What the last verification saw; nothing if that cannot be read. Raises LedgerError if `root` is no ledger."""
    root = layout.check(root)
    seen = Seen()
    with suppress(OSError, ValueError, KeyError, TypeError, LedgerError):
        content = json.loads((root / FOLDER / "files.json").read_bytes())
        if content["format"] == _FILES_FORMAT:
            seen.full_until_us = int(content["full_until_us"])
            for kind, path, stamp, plain in content["known"]:
                adapter = _FACTS.get(kind.partition(" ")[0])
                facts = plain if adapter is None else adapter.validate_python(plain)
                seen.entries[kind, str(root / path)] = tuple(stamp), facts
    return seen


def _plain(facts: Any) -> Any:
    return dataclasses.asdict(facts) if dataclasses.is_dataclass(facts) and not isinstance(facts, type) else facts


def _write(root: Path, name: str, content: dict[str, Any]) -> None:
    with suppress(OSError):
        (root / FOLDER).mkdir(exist_ok=True)
        layout.write_file(root / FOLDER / name, json.dumps(content).encode(), sync=False)


def user_at_host() -> str:
    """Who runs this process, as user@host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()
