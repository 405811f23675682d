"""The roll-ups checked against their events, and against the events that they alone still count."""

import hashlib
from pathlib import Path

from rose.ledger import examine, layout
from rose.ledger.examine import Seen
from rose.ledger.growth import rolled
from rose.ledger.growth.rolled import Coverage
from rose.ledger.layout import LedgerError

ROLL_UP_WRITER, ROLLED_UP_ACTION = "rollup", "rolled_up"


def faults(root: Path, seen: Seen) -> list[str]:
    while True:
        try:
            coverage = rolled.newest(root)
        except LedgerError as error:
            return [str(error)]
        problems = _faults(root, coverage, seen)
        if not problems or rolled.newest(root) == coverage:
            return problems


def ends(root: Path) -> dict[str, int]:
    """Return the last seq of each writer that the newest generation counts; empty if none can be read."""
    try:
        coverage = rolled.newest(root)
    except LedgerError:
        return {}
    return {} if coverage is None else {writer: seq - 1 for writer, (_, seq) in coverage.writers.items()}


def _faults(root: Path, newest: Coverage | None, seen: Seen) -> list[str]:
    recorded = [detail["coverage_sha256"] for detail in examine.recorded(root, ROLL_UP_WRITER, ROLLED_UP_ACTION, seen)]
    problems = []
    for generation in rolled.generations(root):
        try:
            coverage = rolled.read(root, generation)
        except LedgerError as error:
            problems.append(str(error))
            continue
        if coverage is None:
            # An older generation is removed some time after the newest stands.
            continue
        problems += rolled.faults(root, coverage, seen)
        if coverage.sha256 not in recorded:
            problems.append(f"{coverage.folder}/coverage.json: no event of a roll-up says so; it was changed")
    if recorded and (newest is None or newest.sha256 != recorded[-1]) and recorded[-1] not in _unfinished(root):
        problems.append(f"{rolled.FOLDER}: the newest generation that an event of a roll-up names is missing")
    for writer in layout.writers(root):
        covered = -1 if newest is None else newest.writers.get(writer, (-1, 0))[0]
        for part in layout.chain(root, writer):
            if part.state == "archived" and part.last > covered:
                problems.append(f"{part.manifest}: its events were archived, and no roll-up counts them")
    return problems


def _unfinished(root: Path) -> set[str]:
    """Return the SHA-256 of coverage that a killed roll-up was about to put in place. The next one does it again."""
    unfinished = set()
    for path in (root / rolled.FOLDER).glob(".*.tmp/coverage.json"):
        try:
            unfinished.add(hashlib.sha256(path.read_bytes()).hexdigest())
        except FileNotFoundError:
            continue
    return unfinished
