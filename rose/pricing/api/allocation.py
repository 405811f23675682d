"""`/allocation`: what a period cost by a few dimensions, amortized or fully loaded, as sets of named allocations.

A set is of one ledger, provenance and step. Its allocations sum to its cost to the nano-dollar. Every amount is one of
`rose cost` or `rose books`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import polars as pl

from rose.errors import did_you_mean
from rose.pricing import charges
from rose.pricing.api import parameters, window
from rose.pricing.api.ledgers import Ledger, Part, parts
from rose.pricing.api.parameters import LABEL, VIEWS, AllocationQuery, RequestError
from rose.pricing.charges import NothingChargedError
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import bill
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, Stamp
from rose.pricing.spend.cost import UNALLOCATED, QuestionError

Values = tuple[str, ...]
Amounts = dict[str, int | None]

#: What a dimension is called where charges are divided fully loaded.
_CHARGED = {"version": "policy-version", "step": "hour"}
MODEL = "model"
#: Whose model a bucket's time is of: time that nobody worked in is of none.
_WORK = dict.fromkeys(("serving", "headroom"), "serving") | dict.fromkeys(
    ("rollout", "train", "sync", "activation", "transfer"), "rollout"
)
_MODEL_COLUMNS = {"serving": "serving_model", "rollout": "model"}
#: What an allocation has in each view, whole numbers: nano-dollars (`*_nano`), nanoseconds of devices and tokens.
_AMORTIZED = (
    "cost_nano",
    "closed_nano",
    "corrections_nano",
    "open_nano",
    "ns",
    "tokens",
)


@dataclass(kw_only=True, slots=True)
class Divided:
    """What a view makes of a part: amounts by the values of its dimensions, its step's name first where it has one."""

    lines: dict[Values, Amounts]
    stamp: Stamp | None
    #: The whole period's cost, of which a filter leaves a part; None where nothing is charged.
    bill_nano: int | None = None
    #: What is to be known of the lines.
    notes: dict[str, Any] = field(default_factory=dict)


def answer(ledgers: Sequence[Ledger], asked: AllocationQuery, now_ns: int) -> dict[str, Any]:
    """The response. Raises RequestError; PricingError for what cannot be priced; PriceBookError; LedgerError."""
    view = VIEWS[asked.cost_basis]
    if MODEL in asked.only:
        raise _refused(
            "filter", asked.filter, "charges cannot be filtered by model; filter by run, or aggregate by model"
        )
    sets: list[tuple[dict[str, Any], dict[str, Any]]] = []
    count = 0
    for part in parts(ledgers, asked, now_ns):
        try:
            divided = divide(part, asked)
        except NothingChargedError as error:
            divided = Divided(lines={}, stamp=None, notes={"why": str(error)})
        count += len(divided.lines)
        if count > parameters.ROWS_MAX:
            raise RequestError(
                f"parameter aggregate is {asked.aggregate!r}: the answer has more than {parameters.ROWS_MAX:,} "
                "allocations; ask for a shorter window, a longer step, fewer dimensions or with a filter"
            )
        sets += _sets(part, asked, view, divided)
    return {"code": 200, "data": [data for data, _ in sets], "sets": [about for _, about in sets]}


def divide(part: Part, asked: AllocationQuery) -> Divided:
    """The lines of one ledger and provenance. Raises NothingChargedError; and as `answer` does."""
    return _DIVIDE[VIEWS[asked.cost_basis]](part, asked)


def money(nano: int | None) -> str | None:
    """Whole units of the currency as decimals, `3.868750000`; None for what is not known."""
    return None if nano is None else f"{Decimal(nano).scaleb(-9):f}"


def key(values: Sequence[str]) -> str:
    """The name of an allocation: its values with slashes between, those in a value written as %2F."""
    if len(values) == 1:
        return values[0]
    return "/".join(value.replace("%", "%25").replace("/", "%2F") for value in values)


def _sets(
    part: Part, asked: AllocationQuery, view: str, divided: Divided
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The allocations of each step, and what is to be known of them."""
    steps = {"": part.period} if asked.by_step is None else window.parts(part.period, part.calendar, asked.by_step)
    lines = defaultdict[str, dict[Values, Amounts]](dict)
    for values, amounts in divided.lines.items():
        step = values[0] if asked.by_step else ""
        lines[step][values[1:] if asked.by_step else values] = amounts
    for step, period in steps.items():
        own = lines[step]
        times = {"start": window.rfc3339(period.from_ns), "end": window.rfc3339(period.to_ns)}
        common = {
            "window": times,
            "ledger": part.ledger.name,
            "provenance": part.provenance,
            "costBasis": asked.cost_basis,
            "currency": divided.stamp.currency if divided.stamp else None,
        }
        data = {
            key(values): {
                "name": key(values),
                "properties": dict(zip(asked.names, values, strict=True)),
                **common,
                **times,
                "totalCost": money(amounts["total_nano"]),
                **amounts,
            }
            for values, amounts in own.items()
        }
        total = _summed(own.values()) if own else {}
        about = {
            **common,
            "view": view,
            "aggregate": list(asked.names),
            "step": asked.by_step,
            "filter": asked.filter,
            "totalCost": money(total.get("total_nano")),
            "total": total,
            # Of the whole window, which the sets of all steps sum to.
            "bill_nano": divided.bill_nano,
            **(divided.stamp.to_json() if divided.stamp else {}),
            **divided.notes,
        }
        yield data, about


def _summed(lines: Iterable[Amounts]) -> Amounts:
    """The sum of each amount over the lines that know it; None where none does."""
    total: Amounts = {}
    for amounts in lines:
        for name, amount in amounts.items():
            before = total.get(name)
            total[name] = before if amount is None else amount + (before or 0)
    return total


def _amortized(part: Part, asked: AllocationQuery) -> Divided:
    """As `rose cost` has it."""
    steps = (asked.by_step,) if asked.by_step else ()
    by = (*steps, *asked.dimensions)
    wanted = _with_model(by)
    made = part.ask(wanted, asked.only)
    lines = [
        (line.values, {name: getattr(line, name) for name in _AMORTIZED} | {"total_nano": line.cost_nano})
        for line in made.lines
    ]
    return Divided(
        lines=_grouped(lines, _placed(part, wanted, by)),
        stamp=made.stamp,
        bill_nano=made.bill_nano,
        notes={
            "closes": [{"close_id": close_id, "corrections": count} for close_id, count in made.closes.items()],
            "open": [{"start": window.rfc3339(gap.from_ns), "end": window.rfc3339(gap.to_ns)} for gap in made.open],
        },
    )


def _fully_loaded(part: Part, asked: AllocationQuery) -> Divided:
    """As `rose books` has it: the bill with idle time and overhead spread over the work that they are there for."""
    ledger, period = part.ledger, part.period
    named = {*asked.dimensions, *asked.only}
    if labels := sorted(name for name in named if name.startswith(LABEL)):
        raise _refused("costBasis", asked.cost_basis, f"{labels[0]} is known of amortized cost only")
    billed = bill(
        ledger.root,
        period,
        part.book(),
        provenance=part.provenance,
        allow_unverified=ledger.allow_unverified,
        seen=ledger.seen,
    )
    loaded = charges.fully_load(billed.frame)
    step = ("step",) if asked.by_step else ()
    wanted = (*step, *_with_model(asked.dimensions))
    rows = _drilled(loaded, [_CHARGED.get(name, name) for name in wanted], asked.only)
    if asked.by_step:
        steps = {
            window.rfc3339(hour.from_ns)[:13]: window.name(hour, asked.by_step) for hour in part.calendar.hours(period)
        }
        rows = [((steps[hour], *values), amounts) for (hour, *values), amounts in rows]
    place = _placed(part, wanted, (*step, *asked.dimensions))
    return Divided(
        lines=_grouped(rows, place),
        stamp=billed.stamp,
        bill_nano=charge_algebra.total(loaded, "loaded_nano"),
        notes={"closes": [{"close_id": close_id} for close_id in billed.closes]},
    )


def _drilled(loaded: pl.DataFrame, by: Sequence[str], only: Mapping[str, str]) -> list[tuple[Values, Amounts]]:
    """The loaded cost by dimensions, of charges with these values. Raises QuestionError for a value that none has."""
    having = {_CHARGED.get(name, name): value for name, value in only.items()}
    every = [*by, *(name for name in having if name not in by)]
    drilled = charge_algebra.drill(loaded, every, "loaded_nano")
    for name, value in having.items():
        known = {str(row[name]) for row in drilled}
        if value not in known:
            raise QuestionError(f"no charge of the period has {name} {value!r}{did_you_mean(value, known)}")
    return [
        (tuple(str(row[name]) for name in by), {"total_nano": int(row["loaded_nano"])})
        for row in drilled
        if all(row[name] == value for name, value in having.items())
    ]


def _with_model(by: Sequence[str]) -> tuple[str, ...]:
    """The dimensions to ask for so that the model is known: that of a run and of what its devices did."""
    needed = ("run", "bucket") if MODEL in by else ()
    return tuple(dict.fromkeys(name for name in (*by, *needed) if name != MODEL))


def _placed(part: Part, asked: Sequence[str], by: Sequence[str]) -> Callable[[Values], Values]:
    """Makes of the values of dimensions `asked`, which `_with_model` gave, those of `by`."""
    models = _models(part) if MODEL in by else {}

    def place(values: Values) -> Values:
        known = dict(zip(asked, values, strict=True))
        if MODEL in by:
            known[MODEL] = models.get((known["run"], _WORK.get(known["bucket"], "")), UNALLOCATED)
        return tuple(known[name] for name in by)

    return place


def _models(part: Part) -> dict[tuple[str, str], str]:
    """The model that each run rolls out, and the one that its fleet serves, where it says so."""
    runs = part.ledger.rows("api/runs", provenance=part.provenance)
    models = {(run["run_id"], work): run[column] for run in runs for work, column in _MODEL_COLUMNS.items()}
    return {key: model for key, model in models.items() if model is not None}


def _grouped(rows: Iterable[tuple[Values, Amounts]], place: Callable[[Values], Values]) -> dict[Values, Amounts]:
    """The rows added up by where `place` puts their values."""
    grouped: dict[Values, Amounts] = {}
    for values, amounts in rows:
        to = place(values)
        grouped[to] = _summed([grouped[to], amounts]) if to in grouped else amounts
    return grouped


def _refused(name: str, value: str | None, why: str) -> RequestError:
    return RequestError(f"parameter {name} is {value!r}: {why}")


_DIVIDE: Mapping[str, Callable[[Part, AllocationQuery], Divided]] = {
    AMORTIZED: _amortized,
    FULLY_LOADED: _fully_loaded,
}
