"""The last verification of a ledger: its outcome, and its findings for the next one.

verified/state.json      time and user of the verification, each writer's newest segment, and the number of problems
verified/files.json      the findings on each file, and the size, inode and times that the file had then

Others may write these files. So a full verification uses them only to require that the segments in state.json exist. An
incremental verification takes a file as unchanged if its size, inode and times are the same."""

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
from rose.ledger.files import layout
from rose.ledger.files.examine import Manifest, Seen, Segment
from rose.ledger.files.layout import LedgerError

FOLDER = "verified"
_FORMAT, _FILES_FORMAT = 1, 6
_FACTS: dict[str, TypeAdapter[Any]] = {
    "segment": TypeAdapter(Segment),
    "rows": TypeAdapter(Segment),
    "manifest": TypeAdapter(Manifest),
    "events": TypeAdapter(list[tuple[int, str, Any]]),
}


class State(BaseModel):
    """The outcome of the last verification. Times are UTC microseconds since the Unix epoch."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    until_us: int
    full_until_us: int | None
    problems: int
    events: int
    by: str
    heads: dict[str, str]
    unchecked: int = 0

    @property
    def sound(self) -> bool:
        return self.problems == 0 and self.unchecked == 0

    @property
    def text(self) -> str:
        outcome = "sound" if self.sound else f"NOT CHECKED, {self.unchecked} structures that this version cannot read"
        if self.problems:
            outcome = f"NOT SOUND, {self.problems} problem{'s' if self.problems > 1 else ''}"
        if self.full_until_us == self.until_us:
            how = "every byte read"
        elif self.full_until_us is None:
            how = "new and changed files read"
        else:
            how = f"every byte read until {iso(self.full_until_us)}, new and changed files since"
        return f"verified until {iso(self.until_us)}: {outcome} ({how})"

    def to_json(self) -> dict[str, Any]:
        full = None if self.full_until_us is None else iso(self.full_until_us)
        return {"until": iso(self.until_us), "sound": self.sound, "problems": self.problems, "every_byte_until": full}


def state(root: Path) -> State | None:
    try:
        content = json.loads((root / FOLDER / "state.json").read_bytes())
        return State.model_validate(content) if content.pop("format") == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def text(root: Path) -> str:
    return "never verified; run `rose ledger verify`" if (last := state(root)) is None else last.text


def leave(root: Path, result: State) -> None:
    _write(root, "state.json", {"format": _FORMAT, **result.model_dump()})


def save(root: Path, seen: Seen) -> None:
    with seen.lock:
        known = [
            [kind, str(Path(path).relative_to(root)), list(stamp), facts]
            for (kind, path), (stamp, facts) in seen.entries.items()
        ]
        full_until_us = seen.full_until_us
    content = {"format": _FILES_FORMAT, "saved_us": utc_us(), "full_until_us": full_until_us, "known": known}
    _write(root, "files.json", content)


def load(root: Path) -> Seen:
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


def _write(root: Path, name: str, content: dict[str, Any]) -> None:
    with suppress(OSError):
        (root / FOLDER).mkdir(exist_ok=True)
        layout.write_file(root / FOLDER / name, json.dumps(content, default=dataclasses.asdict).encode(), sync=False)


def user_at_host() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()
