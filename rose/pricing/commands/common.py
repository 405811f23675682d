"""Options, output and errors of the pricing commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import utc_us
from rose.ledger.commands import common
from rose.pricing.period import Period, of_month
from rose.pricing.spend.calendar import Calendar
from rose.terminal import echo_data

if TYPE_CHECKING:
    from rose.pricing.figures import Stamp
    from rose.pricing.run.priced import RunFacts
    from rose.pricing.table import Element, Section

BookOption = Annotated[
    str | None,
    typer.Option(
        "--price-book",
        "-b",
        help="A price book TOML file, or `example` for made-up prices. By default, the adopted book, the book of "
        "the run, or the book in ROSE_PRICE_BOOK.",
    ),
]
RunOption = Annotated[str | None, typer.Option("--run", help="Run to price; by default the newest with devices.")]
PeriodOption = Annotated[
    str | None,
    typer.Option(
        "--period",
        "-p",
        help="7d (the last 7 whole days), today, last-week, this-month, last-month, 2026-10, 2026-Q4, 2026-W45, "
        "2026-10-03, 2026-10-03T05, or FROM..TO of two of these, both included. By default this-month.",
    ),
]
TzOption = Annotated[
    str | None, typer.Option("--tz", help="Time zone of days and months, such as Europe/Berlin; by default UTC.")
]
ProvenanceOption = Annotated[
    str | None, typer.Option("--provenance", help="live, replay or simulated; needed if the period mixes these.")
]
UnverifiedOption = Annotated[
    bool, typer.Option("--allow-unverified", help="Price an unverified ledger and mark every figure.")
]
MonthOption = Annotated[
    str | None, typer.Option("--month", help="A UTC month such as 2026-11; by default the current month.")
]
WhoOption = Annotated[str | None, typer.Option("--who", help="Name to record; by default your user name.")]


clear_errors = partial(common.clear_errors, unreadable_code=1)


def period_of(text: str | None, tz: str | None = None) -> Period:
    return Calendar(tz or "UTC").period(text or "this-month", utc_us() * 1000)


def month_of(text: str | None) -> Period:
    return period_of(None) if text is None else of_month(text)


def print_answer(as_json: bool, data: Callable[[], Any], shown: Callable[[], Iterable[Element]]) -> None:
    if as_json:
        echo_data(json.dumps(data(), indent=2, default=str))
        return

    from rose.pricing import console

    console.show(shown())


def print_sections(run: RunFacts, stamp: Stamp, sections: Mapping[str, Section], as_json: bool) -> None:
    from rose.pricing import console
    from rose.pricing.run.priced import heading, to_json

    if as_json:
        head = {"stamp": stamp, "run": run, "price_book": stamp.book}
        echo_data(json.dumps({**to_json(head), **{name: part.to_json() for name, part in sections.items()}}, indent=2))
        return
    parts = (part for section in sections.values() for part in section.parts.values())
    console.show((heading(run, stamp), *parts), spaced=True)
