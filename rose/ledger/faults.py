"""What is no event, as SQL, for what a ledger holds already: written by another program, or a host.

Made from the declarations that `record` and `append` check by. Each view leaves out rows whose numbers it could not
reckon with, and the view `faulty_event` has every row that breaks a declaration. Both conditions stand written out in
`sql/`, so that the files run by themselves; tests hold them against what is made here.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.events import KINDS, NOT_MEASURED, Power
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


@functools.cache
def cases() -> str:
    """What a CASE has that says what is wrong with a row of `stored_event`: of any kind, then of its own."""
    # The only one that every kind must have.
    at_us = _fields()["at_us"]
    lines = [_case("at_us", f"coalesce({_of_value(at_us)}, false)", at_us.wanted)]
    lines += [
        _case(field.name, holds, field.wanted)
        for field in _fields().values()
        if field != at_us and (holds := _of_value(field)) is not None
    ]
    kinds = "\n".join(f"WHEN '{kind}' THEN CASE\n{cases_of}\nEND" for kind in KINDS if (cases_of := _cases_of(kind)))
    return "\n".join([*lines, f"ELSE CASE kind\n{kinds}\nEND"])


def _cases_of(kind: str) -> str:
    lines = []
    for field in rows.fields_of(kind):
        if field.allowed:
            values = ", ".join(f"'{value}'" for value in field.allowed)
            lines.append(_case(field.name, f"coalesce({field.name}, '') IN ({values})", field.wanted))
        elif not field.optional and field.name != "at_us":
            lines.append(_case(field.name, f"{field.name} IS NOT NULL", field.wanted))
    lines += [_case(rule.field, _exact(rule.holds), rule.wanted) for rule in KINDS[kind].rules]
    if kind == Power.kind:
        unmeasured = f"(power_mw IS NULL) = (source = '{NOT_MEASURED}')"
        lines.append(_case("power_mw", unmeasured, f"empty just where source is '{NOT_MEASURED}'"))
    return "\n".join(lines)


def _fields() -> dict[str, Field]:
    return {field.name: field for kind in KINDS for field in rows.fields_of(kind)}


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


def _of_value(field: Field) -> str | None:
    if field.range is not None:
        return _between(field.name, field.range.least, field.range.most)
    if field.sql_type == "DOUBLE":
        return f"isfinite({field.name})"
    return f"{field.name} <> ''" if field.filled else None


def _exact(holds: str) -> str:
    """A rule in SQL in which damaged values cannot overflow."""
    return re.sub(r"\b([a-z]\w*_ns)\b", r"\1::HUGEINT", holds).replace("==", "=")


def _case(field: str, holds: str, wanted: str) -> str:
    text = f"{field} must be {wanted}".replace("'", "''")
    return f"WHEN NOT ({holds})\nTHEN '{text}'"
