"""How an engine describes itself: to its agent in `<page>.<role>.json`, and to its owner in SGLang's `/server_info`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rose.ledger.files.layout import write_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    kv_tokens: int = 0
    compute_mechanism: str = ""
    memory_mechanism: str = ""
    refused: str | None = None  # Why nothing is lent beside the engine.


STATE = "rose"  # the entry of `EngineState` in SGLang's internal states


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineState:
    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    page: str | None = None
    attached: bool = False
    detached: bool = False  # Only the owner may attach it again.
    reason: str | None = None  # Why it has no page.

    @classmethod
    def from_message(cls, message: Any) -> EngineState | None:
        try:
            return cls(**message)
        except TypeError:
            return None


def describe(page: Path, attachment: Attachment) -> None:
    write_file(_path(page, attachment.role), json.dumps(asdict(attachment)).encode(), sync=False)


def described(page: Path, role: Literal["serving", "rollout"]) -> Attachment | None:
    try:
        return Attachment(**json.loads(_path(page, role).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def detached_note(page: Path) -> Path:
    """Return the file that exists while the owner of the serving engine keeps the engine detached from `page`."""
    return page.with_name(f"{page.name}.detached")


def _path(page: Path, role: str) -> Path:
    return page.with_name(f"{page.name}.{role}.json")
