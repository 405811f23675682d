"""What an engine says of itself: to its device in `<page>.<role>.json`, and to its owner in `/server_info`.

`<page>.detached` lies there from when the owner of a serving engine let go of the page until an engine takes it. It
outlives the engine.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """The engine as SGLang resolved its arguments, not as it was asked for. `refused`: why nothing is lent beside it.

    What the two mechanisms are called is in `rose.runtime.coserving.hooks.mechanisms`.
    """

    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    kv_tokens: int = 0
    compute_mechanism: str = ""
    memory_mechanism: str = ""
    refused: str | None = None


#: The entry of an engine's `EngineState` among the internal states of SGLang's `/server_info`.
STATE = "rose"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineState:
    """Whether a running engine has a page. `page`: the one it has or was told to take.

    `detached`: its owner let go of the page, so nobody but the owner attaches it again. `reason`: why it has not taken
    the page; None if it has, or has not tried yet.
    """

    role: Literal["serving", "rollout"]
    pid: int
    model: str = ""
    page: str | None = None
    attached: bool = False
    detached: bool = False
    reason: str | None = None

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: Any) -> EngineState | None:
        """None if that is no state."""
        try:
            return cls(**message)
        except TypeError:
            return None


def describe(page: Path, attachment: Attachment) -> None:
    """Leave the attachment beside the page, whole."""
    path = _path(page, attachment.role)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(attachment)))
    partial.replace(path)


def described(page: Path, role: Literal["serving", "rollout"]) -> Attachment | None:
    """What the last engine of that role said; None if there was none."""
    try:
        return Attachment(**json.loads(_path(page, role).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def note_detached(page: Path) -> None:
    """The owner of the serving engine that has the page lets go of it."""
    _detached(page).touch()


def forget_detached(page: Path) -> None:
    """A serving engine has taken the page."""
    _detached(page).unlink(missing_ok=True)


def is_detached(page: Path) -> bool:
    """Whether an owner let go of the page and no serving engine took it since."""
    return _detached(page).exists()


def _detached(page: Path) -> Path:
    return page.with_name(f"{page.name}.detached")


def _path(page: Path, role: str) -> Path:
    return page.with_name(f"{page.name}.{role}.json")
