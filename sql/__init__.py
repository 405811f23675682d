"""The project's SQL by reader: `views/` is the interface, and `queries/` has the named queries, both by subject.

`rollups/` makes the daily views. The steps of `sums/` and `charges/` are numbered in the order in which they run.
Reports read `run/`, `borrowing/` and `answers/`; the books read `closing/`."""

import functools
import re
from importlib.resources import files

from rose.event_columns import Field, fields
from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.events import KINDS


def read(name: str) -> str:
    """Return the text of a file of this folder, such as "views/lease.sql", with conditions in place of
    `reckonable('lease')` and `reckonable(kind)` (every kind). Raises FileNotFoundError, KeyError."""
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    if "reckonable(kind)" in text:
        every = "".join(f" WHEN '{kind}' THEN {reckonable(kind)}" for kind in KINDS)
        text = text.replace("reckonable(kind)", f"CASE kind{every} ELSE false END")
    return re.sub(r"reckonable\('(\w+)'\)", lambda match: reckonable(match[1]), text)


@functools.cache
def reckonable(kind: str) -> str:
    """Return the condition that a row of `kind` is a valid event: its numbers, rules and needed ids.
    `at_us` must be in range. Sums and views omit other rows, which a program without `rose` may have written."""
    # Integers are all below a power of two if their bits together are.
    together: dict[int, list[Field]] = {}
    apart: list[str] = []
    for field in fields(kind):
        if field.sql_type == "DOUBLE":
            # Sums can use a finite number out of range.
            apart.append(_unless_null(f"isfinite({field.name})", field))
        elif field.range is None or field.name == "at_us":
            continue
        elif field.range.least == 0 and field.range.most in (AMOUNT_MAX, INSTANT_NS_MAX):
            together.setdefault(field.range.most, []).append(field)
        else:
            apart.append(_unless_null(f"{field.name} BETWEEN {field.range.least} AND {field.range.most}", field))
    conditions = [
        f"({' | '.join(f'coalesce({field.name}, 0)' if field.optional else field.name for field in group)}) "
        f"BETWEEN 0 AND {most}"
        for most, group in together.items()
    ]
    conditions += apart
    # A rule must not overflow on numbers out of range, and conditions are tried in any order but inside a CASE.
    if rules := [rule.holds.replace("==", "=") for rule in KINDS[kind].rules]:
        first, second, *rest = [*conditions[:2], *rules]
        conditions = [f"CASE WHEN {first} AND {second} THEN {' AND '.join(rest)} ELSE false END", *conditions[2:]]
    return " AND ".join([*conditions, *(f"{name} <> ''" for name in KINDS[kind].needs)])


def _unless_null(condition: str, field: Field) -> str:
    return f"coalesce({condition}, true)" if field.optional else condition


@functools.cache
def paths(folder: str) -> dict[str, str]:
    """Return the path of each file in `views` or `queries`, by its name without the suffix."""
    return {
        file.name.removesuffix(".sql"): f"{folder}/{subject.name}/{file.name}"
        for subject in files(__name__).joinpath(folder).iterdir()
        if subject.is_dir()
        for file in subject.iterdir()
        if file.name.endswith(".sql")
    }


def view(name: str) -> str:
    """Return the statement that makes a view of the ledger. Raises KeyError."""
    return read(paths("views")[name])
