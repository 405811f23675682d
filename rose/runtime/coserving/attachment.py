"""An engine's report on itself: to its device in `<page>.<role>.json`, and to its owner in `/server_info`.
`<page>.detached` exists from the moment a serving engine's owner releases the page until an engine takes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """The engine's resolved SGLang arguments; `rose.runtime.coserving.hooks.mechanisms` names the mechanisms.
    `refused`: why nothing is lent beside it."""

    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    kv_tokens: int = 0
    compute_mechanism: str = ""
    memory_mechanism: str = ""
    refused: str | None = None


STATE = "rose"  # the entry of `EngineState` in SGLang's internal states


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineState:
    """Whether a running engine has a page. `page`: its page, or the one that it should take. `detached`: its owner
    released the page, so only the owner attaches it again. `reason`: why it has not taken the page."""

    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    page: str | None = None
    attached: bool = False
    detached: bool = False
    reason: str | None = None

    @classmethod
    def from_message(cls, message: Any) -> EngineState | None:
        try:
            return cls(**message)
        except TypeError:
            return None


def describe(page: Path, attachment: Attachment) -> None:
    path = _path(page, attachment.role)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(attachment)))
    partial.replace(path)


def described(page: Path, role: Literal["serving", "rollout"]) -> Attachment | None:
    try:
        return Attachment(**json.loads(_path(page, role).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def detached_note(page: Path) -> Path:
    """Return the file that exists while an owner has released the page and no serving engine has taken it since."""
    return page.with_name(f"{page.name}.detached")


def _path(page: Path, role: str) -> Path:
    return page.with_name(f"{page.name}.{role}.json")
