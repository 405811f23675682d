"""A spool is a ledger that keeps segments until a controller has them. `forwarded/<writer>.json` notes the progress."""

import json
from pathlib import Path

from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError

FOLDER = "forwarded"
#: Writers of upkeep, closes and local access, whose events concern one folder only.
_UPKEEP = frozenset({"access", "archive", "closing", "compaction", "rollup"})
_UPKEEP_PREFIX = "job-"
GATEWAY_WRITER = "gateway"


def is_upkeep(writer: str) -> bool:
    """Return whether any user's key may sign for this writer: other events prove that the writer's events are true."""
    return writer in _UPKEEP - {"closing"} or writer.startswith(_UPKEEP_PREFIX)


def is_local(writer: str) -> bool:
    return writer in _UPKEEP or writer == GATEWAY_WRITER or writer.startswith(_UPKEEP_PREFIX)


def first_unsent_epoch(root: Path, writer: str) -> int | None:
    """Return the first epoch that must stay here because the controller may lack it, or None. Raises LedgerError."""
    if is_local(writer) or not (root / FOLDER).is_dir():
        return None
    path = root / FOLDER / f"{writer}.json"
    try:
        return int(json.loads(path.read_bytes())["epoch"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is damaged; delete it: `rose ledger forward` writes it again") from error


def acknowledged(root: Path, writer: str, epoch: int) -> None:
    layout.write_file(root / FOLDER / f"{writer}.json", json.dumps({"epoch": epoch}).encode())
