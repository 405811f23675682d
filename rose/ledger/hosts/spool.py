"""A spool is a ledger whose segments are copied to a controller. They stay here until they have arrived.
`forwarded/<writer>.json` says how far a writer's segments were acknowledged. It may lag. Commands that remove segments
read it, and the forwarder does while the controller is away."""

import json
from pathlib import Path

from rose.ledger import layout
from rose.ledger.layout import LedgerError

FOLDER = "forwarded"
#: Writers of upkeep, closes and local access, whose events are about one folder only.
_UPKEEP = frozenset({"access", "archive", "closing", "compaction", "rollup"})
_UPKEEP_PREFIX = "job-"
GATEWAY_WRITER = "gateway"


def is_upkeep(writer: str) -> bool:
    """Return whether anyone who has the folder may do this writer's work, which changes no figure."""
    return writer in _UPKEEP - {"closing"} or writer.startswith(_UPKEEP_PREFIX)


def is_local(writer: str) -> bool:
    return writer in _UPKEEP or writer == GATEWAY_WRITER or writer.startswith(_UPKEEP_PREFIX)


def first_unsent_epoch(root: Path, writer: str) -> int | None:
    """Return the first epoch that must stay as written, since the controller may lack it; None if none must. Raises
    LedgerError if the forwarder's note is damaged."""
    if is_local(writer) or not (root / FOLDER).is_dir():
        return None
    path = root / FOLDER / f"{writer}.json"
    try:
        return int(json.loads(path.read_bytes())["epoch"])
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is damaged; delete it: `rose ledger forward` writes it again") from error


def make(root: Path) -> None:
    """Make the ledger at `root` a spool: from now on nothing unsent may leave it."""
    layout.make_folder(root / FOLDER)


def acknowledged(root: Path, writer: str, epoch: int) -> None:
    """Note that the controller's ledger holds every segment of `writer` before this epoch."""
    layout.write_file(root / FOLDER / f"{writer}.json", json.dumps({"epoch": epoch}).encode())
