"""What is no event, as SQL, for what a ledger holds already: written by another program, or a host.

Events are checked where they enter (`rose.ledger.rows`). For rows that entered by another way, each view leaves out
those that it could not reckon with, and the view `faulty_event` has each such row. The condition stands written out in
`sql/`, so that the files run by themselves; tests hold it against what is made here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.events import KINDS
from rose.ledger import catalog, rows
from rose.ledger.rows import Field

#: Faults that are named one by one.
NAMED_MAX = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that is no event, or not the only one of its id or its time: `value` is what stands in `field`."""

    writer: str
    seq: int
    kind: str
    fault: str
    value: str | None

    def __str__(self) -> str:
        return f"{self.writer}/{self.seq}: event {self.kind!r}: {self.fault}, got {self.value}"


def listed(root: Path | str, limit: int = NAMED_MAX) -> tuple[int, list[Fault]]:
    """How many faulty rows the ledger at `root` holds, and the first of them. Raises LedgerError."""
    with catalog.connect(root) as connection:
        (count,) = connection.execute("SELECT count(*) FROM faulty_event").fetchall()[0]
        select = "SELECT writer, seq, kind, fault, value FROM faulty_event ORDER BY ALL LIMIT ?"
        faults = [Fault(*row) for row in connection.execute(select, [limit]).fetchall()] if count else []
    return count, faults


@functools.cache
def reckonable(kind: str) -> str:
    """A condition on the rows of a kind whose `at_us` is in range.

    Numbers are in range, rules hold of them, and the ids are there that the kind needs.
    """
    conditions = [_together(group, most) for most, group in _groups(kind).items()]
    for field in rows.fields_of(kind):
        if field.sql_type == "DOUBLE":
            # What is out of range can be reckoned with.
            conditions.append(_unless_null(f"isfinite({field.name})", field))
        elif field.range is not None and field.name != "at_us" and field not in _groups(kind).get(field.range.most, ()):
            conditions.append(_unless_null(_between(field.name, field.range.least, field.range.most), field))
    # A rule must not overflow on numbers out of range, and conditions are tried in any order but inside a CASE.
    if rules := [rule.holds.replace("==", "=") for rule in KINDS[kind].rules]:
        first, second, *rest = [*conditions[:2], *rules]
        conditions = [f"CASE WHEN {first} AND {second} THEN {' AND '.join(rest)} ELSE false END", *conditions[2:]]
    conditions += [f"{name} <> ''" for name in KINDS[kind].needs]
    return " AND ".join(conditions)


def _groups(kind: str) -> dict[int, list[Field]]:
    """Integers that are all from 0 to one less than a power of two: together they are if their bits are."""
    groups: dict[int, list[Field]] = {}
    for field in rows.fields_of(kind):
        if field.range is not None and field.range.least == 0 and field.range.most in (AMOUNT_MAX, INSTANT_NS_MAX):
            groups.setdefault(field.range.most, []).append(field)
    return groups


def _together(group: list[Field], most: int) -> str:
    bits = " | ".join(f"coalesce({field.name}, 0)" if field.optional else field.name for field in group)
    return _between(f"({bits})" if len(group) > 1 else bits, 0, most)


def _between(value: str, least: int, most: int) -> str:
    return f"{value} BETWEEN {least} AND {most}"


def _unless_null(condition: str, field: Field) -> str:
    return f"coalesce({condition}, true)" if field.optional else condition
