"""The log of what `rose` commands and the dashboard's SQL page read on a ledger's folder, where ROSE_LOG_ACCESS asks.

An event of the writer `access`, which is open for that moment. Whoever may read the folder may read its files without
any log, so one that cannot be written is said on stderr and keeps nobody from reading; a gateway is stricter.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rose.events import Access
from rose.ledger import layout
from rose.ledger.layout import LedgerError

WRITER = "access"
#: `exports`: exports, reports and verifications are logged; `queries`: queries too; anything else: nothing.
VARIABLE = "ROSE_LOG_ACCESS"
#: Characters of a statement that are kept; its hash is of all of them.
STATEMENT_CHARACTERS = 1000


@dataclass(slots=True)
class Reading:
    """What somebody is given; whoever gives it fills in how many rows."""

    rows: int | None = None


@contextmanager
def logged(
    root: Path | str,
    action: Literal["query", "export", "verify", "report", "receipt"],
    asked: str,
    *,
    who: str | None = None,
) -> Iterator[Reading]:
    """The block reads the ledger at `root`; once it is done there is an event of it, if VARIABLE asks for one.

    `who` reads it; this user at this host if it is None.
    """
    reading, began_ns = Reading(), time.monotonic_ns()
    outcome: Literal["ok", "refused", "failed", "timeout"] = "ok"
    try:
        yield reading
    except Exception as error:
        outcome = getattr(error, "outcome", "failed")
        raise
    finally:
        took: dict[str, Any] = {"result_rows": reading.rows, "duration_ns": time.monotonic_ns() - began_ns}
        _write(root, action, {"outcome": outcome, **took, **statement(asked)}, who)


def statement(text: str | None) -> dict[str, Any]:
    """The fields of an Access that say what was asked for."""
    if text is None:
        return {}
    # Half of a surrogate pair, which JSON can bring, is no text that could be stored.
    content = text.encode(errors="backslashreplace")
    kept = text[:STATEMENT_CHARACTERS].encode(errors="backslashreplace").decode()
    return {"statement": kept, "statement_sha256": hashlib.sha256(content).hexdigest()}


def _write(
    root: Path | str,
    action: Literal["query", "export", "verify", "report", "receipt"],
    fields: dict[str, Any],
    who: str | None,
) -> None:
    try:
        root = layout.check(root)
    except LedgerError:
        # There is nothing to log in, and whoever read it was told so.
        return
    try:
        if os.environ.get(VARIABLE) not in (("queries",) if action == "query" else ("exports", "queries")):
            return
        # Only now: they load Arrow, which a query does while its worker starts.
        from rose.ledger import verified
        from rose.ledger.writer import LedgerWriter

        # Another command may be writing its own. No writer's name begins with a dot.
        with (
            layout.locked(root / "locks" / ".access.lock"),
            LedgerWriter.open(root, WRITER, layout.UPKEEP_RUN_ID) as writer,
        ):
            writer.record(Access(who=who or verified.user_at_host(), action=action, **fields))
    except (LedgerError, OSError) as error:
        from rose.terminal import echo

        echo(f"this is not in the ledger's access log: {error}", err=True)
