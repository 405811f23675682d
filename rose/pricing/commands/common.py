"""What the pricing commands have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.errors import UserError
from rose.ledger.commands.common import unreadable
from rose.terminal import echo_data, echo_error

if TYPE_CHECKING:
    from rose.pricing.document import RunFacts
    from rose.pricing.figures import Stamp
    from rose.pricing.table import Element, Section

BookOption = Annotated[
    str | None,
    typer.Option(
        "--price-book",
        "-b",
        help="A price book TOML file, or `example` for made-up prices; else the adopted one, the run's own, or "
        "ROSE_PRICE_BOOK's.",
    ),
]
RunOption = Annotated[str | None, typer.Option("--run", help="Run to price; the newest with devices if left out.")]
FromOption = Annotated[
    str | None, typer.Option("--from", help="Begin of the period, UTC: a day, or an hour such as 2026-11-01T05.")
]
ToOption = Annotated[str | None, typer.Option("--to", help="End of the period, UTC, not in it.")]
PeriodOption = Annotated[
    str | None,
    typer.Option(
        "--period",
        "-p",
        help="7d (the last 7 whole days), today, last-week, this-month, last-month, 2026-10, 2026-Q4, 2026-W45, "
        "2026-10-03, or FROM..TO of two of these, both in it. Else this-month.",
    ),
]
TzOption = Annotated[
    str | None, typer.Option("--tz", help="Days and months of this time zone, such as Europe/Berlin; else UTC.")
]
ProvenanceOption = Annotated[
    str | None, typer.Option("--provenance", help="live, replay or simulated, where the period has several.")
]
UnverifiedOption = Annotated[
    bool, typer.Option("--allow-unverified", help="Price a ledger that does not verify, every figure marked so.")
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Rows for a spreadsheet, amounts to the nano.")]
MonthOption = Annotated[str | None, typer.Option("--month", help="A UTC month such as 2026-11.")]
WhoOption = Annotated[str | None, typer.Option("--who", help="Who does it, for the record; else this user.")]


def print_answer(as_json: bool, data: Any, shown: Callable[[], Iterable[Element]]) -> None:
    """Either plain values, or what `shown()` gives to a terminal."""
    if as_json:
        echo_data(json.dumps(data, indent=2, default=str))
        return

    from rose.pricing import console

    console.show(shown())


def print_sections(run: RunFacts, stamp: Stamp, sections: Mapping[str, Section], as_json: bool) -> None:
    """Print the answers on a run: plain values by question, or tables one after the other."""
    from rose.pricing import console
    from rose.pricing.document import heading, to_json

    if as_json:
        head = {"stamp": stamp, "run": run, "price_book": stamp.book}
        echo_data(json.dumps({**to_json(head), **{name: part.to_json() for name, part in sections.items()}}, indent=2))
        return
    parts = (part for section in sections.values() for part in section.parts.values())
    console.show((heading(run, stamp), *parts), spaced=True)


def check_format(as_csv: bool, as_json: bool) -> None:
    """Raises PricingError where two formats are asked for."""
    from rose.pricing.money import PricingError

    if as_csv and as_json:
        raise PricingError("give --csv or --json, not both")


def print_rows(
    data: Callable[[], Any],
    csv_text: Callable[[], str],
    parts: Callable[[], Iterable[Element]],
    as_csv: bool,
    as_json: bool,
) -> None:
    """Print an answer in the format that was asked for: plain values, CSV, or tables."""
    if as_json:
        echo_data(json.dumps(data(), indent=2))
    elif as_csv:
        echo_data(csv_text())
    else:
        from rose.pricing import console

        console.show(parts())


@contextmanager
def clear_errors() -> Iterator[None]:
    """Say on stderr what is wrong, and exit with 2."""
    try:
        yield
    except UserError as error:
        echo_error(error)
        raise typer.Exit(UserError.exit_code) from None
    except Exception as error:
        echo_error(unreadable(error))
        raise typer.Exit(1) from None
