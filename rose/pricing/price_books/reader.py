"""Reading the text of a price book: every fault of the file at once, each with its line, name, value and what to do."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, ValidationError

from rose.pricing.price_books.entries import Entry, Header, PriceBookError, span_of
from rose.pricing.price_books.rules import FILE_TABLES

_CURRENCY = (
    "unknown currency; books are in US dollars: convert every amount, say the rate of exchange in `source`, and write "
    '"USD"'
)
#: Tables without which nothing can be priced, and how to add one.
_REQUIRED = {
    "device": "a [[device]] with the price of each class of device",
    "electricity": "[electricity]; usd_per_kwh = 0 and pue = 1 where the price of every device covers its power",
    "lending": "[lending], with 0 for what is free",
    "tokens": "[tokens], with what serving asks for a million",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at a place of the file: (table, which of its entries, key, ...), or (key,) at the top."""

    loc: tuple[int | str, ...]
    text: str


def read(text: str, source: str) -> dict[str, Any]:
    """Header keys and lists of entries by table, all validated; `source` names the file in errors.

    Raises PriceBookError with everything that is wrong: fields, missing tables, and two prices for one day.
    """
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        again = "; for several entries of one table write [[...]] before each" if "Cannot" in str(error) else ""
        raise PriceBookError(f"price book {source} is not valid TOML: {error}{again}") from None
    except (ValueError, ArithmeticError):
        raise PriceBookError(f"price book {source} has a number too long for any price; shorten it") from None
    faults: list[Fault] = []
    by_table: dict[str, list[tuple[int, Entry]]] = {}
    for table, kind in FILE_TABLES.items():
        by_table[table] = list(_entries(table, kind, data.get(table, []), faults))
    top = {key: value for key, value in data.items() if key not in FILE_TABLES}
    try:
        Header.model_validate(top)
    except ValidationError as error:
        faults += _explained((), Header, error)
    faults += [
        Fault((table,), f"is missing; add {how}") for table, how in _REQUIRED.items() if data.get(table) in (None, [])
    ]
    faults += [fault for table in FILE_TABLES for fault in _overlaps(table, by_table[table], text)]
    if faults:
        lines = sorted((_line_of(fault.loc, text) or 0, index) for index, fault in enumerate(faults))
        listing = "\n".join(f"  {_where(faults[index], line, data)}: {faults[index].text}" for line, index in lines)
        raise PriceBookError(f"price book {source}:\n{listing}")
    return top | {table: [entry for _, entry in entries] for table, entries in by_table.items()}


def _entries(table: str, kind: type[Entry], given: object, faults: list[Fault]) -> Iterator[tuple[int, Entry]]:
    """Entries of a table with their places; a single table counts as a list of one.

    One whose fault is neither in its dates nor in what it is a price of is there too, so that its overlaps are found.
    """
    placed = {"valid_from", "valid_to"} | {kind.model_fields[field].alias or field for field in kind.key_fields}
    for index, item in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(item, dict):
            faults.append(Fault((table, index), f"must be a table: [[{table}]] with its keys on the lines below it"))
            continue
        try:
            yield index, kind.model_validate(item)
        except ValidationError as error:
            faults.extend(_explained((table, index), kind, error))
            if placed.isdisjoint(str(part) for wrong in error.errors() for part in wrong["loc"][:1]):
                yield index, kind.model_construct(**item)


def _overlaps(
    table: str,
    entries: list[tuple[int, Entry]],
    text: str,
) -> Iterator[Fault]:
    """A fault for each entry that holds on a day on which an earlier one of the same key does."""
    by_key: dict[tuple[str, ...], list[tuple[int, Entry]]] = {}
    for index, entry in entries:
        by_key.setdefault(entry.key, []).append((index, entry))
    for key, same in by_key.items():
        lasting: tuple[int, Entry] | None = None
        for index, entry in sorted(same, key=lambda item: item[1].days[0] or date.min):
            if lasting is not None and _meet(lasting[1], entry):
                line = _line_of((table, lasting[0]), text)
                yield Fault((table, index), _two_prices(" ".join((table, *key)), lasting[1], entry, line))
            if lasting is None or (lasting[1].days[1] or date.max) < (entry.days[1] or date.max):
                lasting = index, entry


def _meet(earlier: Entry, later: Entry) -> bool:
    end, start = earlier.days[1], later.days[0]
    return end is None or start is None or start < end


def _two_prices(what: str, earlier: Entry, later: Entry, line: int | None) -> str:
    other = f"the one of line {line}" if line else "another one"
    start = later.days[0]
    if earlier.days == later.days:
        return f"{what!r} is given twice for the same days, here and by {other}; keep one"
    on = f" on {start}" if start else ""
    text = f"{what!r} has two {earlier.noun}s{on}: {other} holds {span_of(*earlier.days)}"
    if start is None or start == earlier.days[0]:
        return f"{text}, this one {span_of(*later.days)}; keep one, or give them dates that do not meet"
    return f"{text}; end it with valid_to = {start} or earlier, or let this one begin later"


def _explained(place: tuple[int | str, ...], kind: type[BaseModel], error: ValidationError) -> Iterator[Fault]:
    """Each fault that pydantic found in one table, in this file's words."""
    known = {field.alias or name for name, field in kind.model_fields.items()}
    for item in error.errors():
        text, key = item["msg"].removeprefix("Value error, "), str(item["loc"][-1]) if item["loc"] else ""
        match item["type"]:
            case "missing":
                text = f"is missing; add {key} = ..."
            case "extra_forbidden":
                names = known if place else known | FILE_TABLES.keys()
                near = difflib.get_close_matches(key, sorted(names), n=1)
                text = f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known are {_listed(names)}"
            case "literal_error" if key == "currency":
                text = _CURRENCY
            case "literal_error":
                text = f"must be {item['ctx']['expected']}"
            case "string_type":
                text = "must be text in quotes"
            case "string_too_short":
                text = "must not be empty"
            case "string_pattern_mismatch":
                text = 'must be the three capital letters of a currency, such as "EUR"'
            case "bool_type":
                text = "must be true or false, without quotes"
        if item["type"] != "missing" and not isinstance(item["input"], dict):
            text += f" (got {_shown(item['input'])})"
        yield Fault((*place, *item["loc"]), text)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value))}]"
    return str(value) if isinstance(value, Decimal | date) else repr(value)


def _where(fault: Fault, line: int, data: Mapping[str, Any]) -> str:
    """`line 10: [[device]] usd_per_hour`; without a line, which of its table's entries it is."""
    table, *rest = fault.loc or ("the file",)
    at = f"line {line}: " if line else ""
    if table not in FILE_TABLES:
        return at + str(table)
    if table not in data:
        return str(table)
    name = f"[{table}]" if isinstance(data[str(table)], dict) else f"[[{table}]]"
    if not line and rest and isinstance(rest[0], int):
        name += f" number {rest[0] + 1}"
    keys = "".join(f"[{part}]" if isinstance(part, int) else f" {part}" for part in rest[1:])
    return at + name + keys


def _line_of(loc: tuple[int | str, ...], text: str) -> int | None:
    """Line of the table or key that `loc` names, for the plain layout of a price book; None if it is not found."""
    table = str(loc[0]) if loc else ""
    nth = loc[1] if len(loc) > 1 and isinstance(loc[1], int) else 0
    key = next((part for part in loc[1:] if isinstance(part, str)), None)
    header = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*\]\]?\s*(#.*)?$")
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if header.match(line)]
    if not starts:
        top = re.compile(rf"\s*{re.escape(table)}\s*[=.]")
        return next((index + 1 for index, line in enumerate(lines) if table and top.match(line)), None)
    if nth >= len(starts):
        return None
    for index in range(starts[nth] + 1, len(lines)):
        if lines[index].lstrip().startswith("["):
            break
        if key and re.match(rf"\s*{re.escape(key)}\s*=", lines[index]):
            return index + 1
    return starts[nth] + 1
