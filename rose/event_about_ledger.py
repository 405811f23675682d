"""Kinds of events in which a ledger speaks of itself: what was done to it, and who read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rose.event_base import Event
from rose.event_fields import Count, DurationNs, Id


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger(Event):
    """The ledger about itself: what a compaction merged, events it had to drop, jobs and their results."""

    kind: ClassVar[str] = "ledger"
    durable: ClassVar[bool] = True
    action: str
    detail_json: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Access(Event):
    """Somebody read the ledger, or was refused: who, from where, what for, and what came of it.

    A gateway writes one for each query and refusal. `count` is above 1 where the same happened that often meanwhile:
    refusals of one peer within a second, looks of one peer at how far writers are within a minute.
    """

    kind: ClassVar[str] = "access"
    durable: ClassVar[bool] = True
    #: The name of a token, or `user@host` for a command on the folder.
    who: Id
    #: `info`: views were listed, or how far writers are. `*_denied`: the token, or a scope of it, was missing.
    action: Literal[
        "query",
        "info",
        "export",
        "verify",
        "report",
        "receipt",
        "token_denied",
        "read_denied",
        "append_denied",
        "admin_denied",
    ]
    outcome: Literal["ok", "refused", "failed", "timeout"]
    #: Address that a call came from; None for a command on the folder.
    peer: str | None = None
    #: What was asked for, its first 1,000 characters; the SHA-256 is that of the whole text in UTF-8.
    statement: str | None = None
    statement_sha256: str | None = None
    result_rows: Count | None = None
    duration_ns: DurationNs | None = None
    count: Count | None = None
