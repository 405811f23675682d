"""The project's SQL, by who asks: `views/` is the interface and `queries/` what people ask by name, by subject.

`interface.md` says how to use these two. `rollups/` is what the daily views are made of. `sums/` and `charges/` are
programs: their steps are numbered in the order in which they run. `run/`, `borrowing/` and `answers/` are what reports
read; `api/`, `dashboard/`, `metrics/`, `jobs/`, `checks/`, `device/`, `export/`, `reconcile/` and `alerts/`
are named after who asks. `closing/` belongs to the books.
"""

import functools
import re
from importlib.resources import files

from rose.event_columns import Field, fields
from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.events import KINDS


def read(name: str) -> str:
    """The text of a file of this folder, such as "views/lease.sql".

    `reckonable('lease')` in it stands for the condition on rows of that kind, and `reckonable(kind)` for those of all
    kinds. Raises FileNotFoundError, and KeyError for a kind that is not in KINDS.
    """
    text = files(__name__).joinpath(name).read_text(encoding="utf-8")
    if "reckonable(kind)" in text:
        every = "".join(f" WHEN '{kind}' THEN {reckonable(kind)}" for kind in KINDS)
        text = text.replace("reckonable(kind)", f"CASE kind{every} ELSE false END")
    return re.sub(r"reckonable\('(\w+)'\)", lambda match: reckonable(match[1]), text)


@functools.cache
def reckonable(kind: str) -> str:
    """A condition on rows of a kind whose `at_us` is in range: numbers are in range, rules hold, needed ids are there.

    Rows that a program without `rose` wrote may break it; sums and views leave them out.
    """
    # Integers that are all from 0 to one less than a power of two are so together if their bits are.
    together: dict[int, list[Field]] = {}
    apart: list[str] = []
    for field in fields(kind):
        if field.sql_type == "DOUBLE":
            # A finite number out of range can be reckoned with.
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
    """Where each file in the folders of `views` or `queries` lies, by its name without the suffix."""
    return {
        file.name.removesuffix(".sql"): f"{folder}/{subject.name}/{file.name}"
        for subject in files(__name__).joinpath(folder).iterdir()
        if subject.is_dir()
        for file in subject.iterdir()
        if file.name.endswith(".sql")
    }


def view(name: str) -> str:
    """The text that makes a view of the ledger. Raises KeyError."""
    return read(paths("views")[name])
