"""What changed between two price books: by entry, field and the days concerned, whatever the order in the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

from rose.pricing.price_books.entries import Entry, PowerFigure
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.price_books.rules import FILE_TABLES

#: A field of an entry, or a whole one.
Value = Decimal | str | bool | date | Entry | tuple[tuple[Decimal, Decimal], ...] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What differs over the days [valid_from, valid_to); None is no bound.

    `field` is None where a whole entry was added or removed; `old` or `new` is then that entry and the other None.
    """

    table: str
    key: tuple[str, ...]
    field: str | None
    old: Value
    new: Value
    valid_from: date | None
    valid_to: date | None

    @property
    def what(self) -> str:
        """`device h100-sxm`."""
        return " ".join((self.table, *self.key))

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        """What happened."""
        if self.field is not None:
            return "changed"
        return "added" if self.old is None else "removed"

    @property
    def percent(self) -> float | None:
        """(new - old) / old in percent; None where that is no number."""
        if not isinstance(self.old, Decimal) or not isinstance(self.new, Decimal) or not self.old:
            return None
        return float((Fraction(self.new) / Fraction(self.old) - 1) * 100)


@dataclass(frozen=True, slots=True)
class Diff:
    """Two books and the changes from one to the other; none where both say the same of every day."""

    old: PriceBook
    new: PriceBook
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Rates as text, exact; dates as `YYYY-MM-DD`; `percent` a number or null; `days` null where unbounded."""
        books = {
            side: {"name": book.name, "version": book.version, "sha256": book.sha256}
            for side, book in (("old", self.old), ("new", self.new))
        }
        changes = [
            {
                "table": change.table,
                "key": list(change.key),
                "change": change.kind,
                "field": change.field,
                "old": _plain(change.old),
                "new": _plain(change.new),
                "percent": change.percent,
                "valid_from": _plain(change.valid_from),
                "valid_to": _plain(change.valid_to),
            }
            for change in self.changes
        ]
        return {**books, "changes": changes}


def diff(old: PriceBook, new: PriceBook) -> Diff:
    """Every difference between what two books say of each day. Entries that only moved or were cut in two are none."""
    changes: list[Change] = []
    for table in FILE_TABLES:
        before, after = _by_key(old.entries(table)), _by_key(new.entries(table))
        for key in dict.fromkeys([*before, *after]):
            changes += _changes(table, key, before.get(key, []), after.get(key, []))
    return Diff(old, new, tuple(changes))


def _by_key(entries: Iterable[Entry]) -> dict[tuple[str, ...], list[Entry]]:
    by_key: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        by_key.setdefault(entry.key, []).append(entry)
    return by_key


def _changes(table: str, key: tuple[str, ...], before: list[Entry], after: list[Entry]) -> list[Change]:
    """Changes of one thing, in the order of days; one that goes on over the next stretch of days is one change."""
    by_field: dict[str | None, list[Change]] = {}
    edges = {day for entry in [*before, *after] for day in entry.days if day is not None}
    for first, end in pairwise([None, *sorted(edges), None]):
        for field, old, new in _differing(_on(before, first, end), _on(after, first, end)):
            so_far = by_field.setdefault(field, [])
            begun = first
            if so_far and so_far[-1].valid_to == first and _alike(so_far[-1].old, old) and _alike(so_far[-1].new, new):
                begun = so_far.pop().valid_from
            change = Change(table=table, key=key, field=field, old=old, new=new, valid_from=begun, valid_to=end)
            so_far.append(change)
    in_days = (change for changes in by_field.values() for change in changes)
    return sorted(in_days, key=lambda change: change.valid_from or date.min)


def _on(entries: Iterable[Entry], first: date | None, end: date | None) -> Entry | None:
    """The entry that holds over days inside which none begins or ends."""
    for entry in entries:
        start, stop = entry.days
        begun = start is None or (first is not None and start <= first)
        if begun and (stop is None or (end is not None and end <= stop)):
            return entry
    return None


def _differing(old: Entry | None, new: Entry | None) -> Iterator[tuple[str | None, Value, Value]]:
    """(field, old, new) of what differs; without a field where only one of the two is there."""
    if old is None or new is None:
        if old is not new:
            yield None, old, new
        return
    before, after = _values(old, new), _values(new, old)
    for field, was in before.items():
        if was != after[field]:
            yield field, was, after[field]


def _alike(one: Value, other: Value) -> bool:
    if isinstance(one, Entry) and isinstance(other, Entry):
        return _values(one, other) == _values(other, one)
    return one == other


def _values(entry: Entry, other: Entry) -> dict[str, Value]:
    """Fields to compare, by their names in the file. Power is compared at the loads that either entry gives."""
    cited: dict[str, Value] = {"source": entry.source, "source_date": entry.source_date}
    if isinstance(entry, PowerFigure) and isinstance(other, PowerFigure):
        loads = sorted({Fraction(load) for load, _ in (*entry.points, *other.points)})
        return {f"watts at load {_decimal(load):f}": _decimal(entry.watts(load)) for load in loads} | cited
    values = entry.model_dump(exclude={*entry.key_fields, "valid_from", "valid_to", *cited})
    # A table within an entry, such as the part of each team, is compared key by key.
    for name in [name for name in values if isinstance(getattr(entry, name) or getattr(other, name), dict)]:
        tables = values.pop(name) or {}, getattr(other, name) or {}
        values |= {f"{name} {key}": tables[0].get(key) for key in sorted({*tables[0], *tables[1]})}
    return values | cited


def _decimal(exact: Fraction) -> Decimal:
    """To 28 digits: exact but for watts between points that no decimal can write."""
    return Decimal(exact.numerator) / Decimal(exact.denominator)


def _plain(value: Value) -> object:
    if isinstance(value, Entry):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, tuple):
        return [[f"{number:f}" for number in point] for point in value]
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
