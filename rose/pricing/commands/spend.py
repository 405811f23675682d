"""`rose cost`, `rose saved` and `rose forecast`: what a period cost and saved, and what a month will have cost."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.access import logged
from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.pricing.commands.common import (
    BookOption,
    CsvOption,
    PeriodOption,
    ProvenanceOption,
    TzOption,
    UnverifiedOption,
    check_format,
    clear_errors,
    print_rows,
)
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.pricing.closing.records import Posting
    from rose.pricing.spend.cost import Cost, Question


def cost_command(
    period: PeriodOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            help="team, run, device-class, pool, device, hardware, bucket, task, version, tag:NAME, day, week, month, "
            "quarter or year; give it again for more, six at most. Else team.",
        ),
    ] = None,
    team: Annotated[str | None, typer.Option("--team", help="One team only.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="One run only.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Runs with a tag only, as NAME=VALUE.")] = None,
    tz: TzOption = None,
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    close: Annotated[
        str | None, typer.Option("--close", help="One close with its corrections, and no other hour.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the answer to this .html file: one page to send or print.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    allow_unverified: UnverifiedOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a period cost, by one to six dimensions: closed days from the books, open days priced now."""
    with clear_errors():
        root = ledger_root(ledger)
        check_format(as_csv, as_json)
        _check_html(html, force, as_csv or as_json)
        options: dict[str, Any] = {
            option: value
            for option, value in (
                ("period", period),
                ("by", by or None),
                ("team", team),
                ("run", run),
                ("tag", tag),
                ("tz", tz),
                ("provenance", provenance),
                ("price_book", price_book),
                ("close", close),
            )
            if value is not None
        }
        with logged(root, "report", f"cost {json.dumps(options)}"), progress_bar("Adding up"):
            from rose.pricing.spend import cost, tables

            asked, book = _question(root, options), options.get("price_book")
            made = cost.ask(root, asked, book, allow_unverified=allow_unverified)
        if html is not None:
            _write_page(root, made, html, force)
            return
        print_rows(made.to_json, lambda: tables.csv_text(made), lambda: tables.terminal(made), as_csv, as_json)


def _check_html(path: Path | None, force: bool, with_another: bool) -> None:
    """Raises PricingError for a file that cannot be written, before the work."""
    from rose.pricing.export import out
    from rose.pricing.money import PricingError

    if path is None:
        return
    if with_another:
        raise PricingError("--html writes one page: leave out --csv and --json")
    out.suffix_of(path, (".html",), "a page")
    out.refuse_existing(path, force)


def _write_page(root: Path, made: Cost, path: Path, force: bool) -> None:
    from rose.pricing.closing.records import postings
    from rose.pricing.export import markup
    from rose.pricing.money import format_money
    from rose.pricing.spend import tables

    close_id = made.question.close_id
    title = f"Cost by {', '.join(made.question.by)}" + (f", close {close_id}" if close_id else "")
    written = markup.write(
        path,
        title,
        tables.page(made, postings(root)[close_id] if close_id else ()),
        totals={"total": made.total.cost_nano},
        warnings=made.stamp.warnings,
        force=force,
    )
    echo(f"{written.path}: {format_money(made.total.cost_nano, made.stamp.currency)}, SHA-256 {written.sha256}")


def _question(root: Path, options: dict[str, Any]) -> Question:
    """The question that options ask. Raises PricingError for one that is wrong."""
    from rose.clock import utc_us
    from rose.pricing.money import PricingError
    from rose.pricing.spend.calendar import Calendar
    from rose.pricing.spend.cost import Question

    wanted, by = options.get("period", "this-month"), options.get("by", ("team",))
    first = _first(root, options)
    calendar = Calendar(options.get("tz") or "UTC")
    only: dict[str, str] = {name: options[name] for name in ("team", "run") if name in options}
    if "tag" in options:
        name, equals, value = options["tag"].partition("=")
        if not (name and equals and value):
            raise PricingError(f"--tag {options['tag']!r} is no tag; write NAME=VALUE, such as --tag project=maze")
        only[f"tag:{name}"] = value
    return Question(
        period=first.period if first else calendar.period(wanted, utc_us() * 1000),
        by=tuple(by),
        only=only,
        calendar=calendar,
        provenance=first.provenance if first else options.get("provenance"),
        close_id=first.close_id if first else None,
    )


def _first(root: Path, options: dict[str, Any]) -> Posting | None:
    """The close that is asked about, if one is. Raises PricingError for an unknown one, and for options beside it."""
    from rose.pricing.closing import store
    from rose.pricing.money import PricingError

    if "close" not in options:
        return None
    if others := options.keys() & {"period", "provenance", "price_book"}:
        names = (name.replace("_", "-") for name in sorted(others))
        raise PricingError(f"--close has its own period and prices: leave out --{', --'.join(names)}")
    return store.of_close(root, options["close"])[0]


def saved_command(
    period: PeriodOption = None,
    team: Annotated[str | None, typer.Option("--team", help="Runs of one team only.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="One run only.")] = None,
    tz: TzOption = None,
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """What borrowing saved: cash saved and capacity avoided, of the fleet, and by team and run."""
    with clear_errors():
        from rose.clock import utc_us
        from rose.pricing.spend import tables
        from rose.pricing.spend.calendar import Calendar
        from rose.pricing.spend.saved import saved

        check_format(as_csv, as_json)
        root = ledger_root(ledger)
        asked = period or "this-month"
        calendar = Calendar(tz or "UTC")
        wanted = calendar.period(asked, utc_us() * 1000)
        with logged(root, "report", f"saved {wanted.label}"), progress_bar("Comparing runs") as progress:
            made = saved(
                root,
                wanted,
                price_book,
                team=team,
                run_id=run,
                provenance=provenance,
                allow_unverified=allow_unverified,
                progress=progress,
            )
        parts = functools.partial(tables.saved_terminal, made, calendar)
        print_rows(made.to_json, lambda: tables.saved_csv(made), parts, as_csv, as_json)


def forecast_command(
    ledger: LedgerOption = None,
    month: Annotated[str | None, typer.Option("--month", help="A UTC month such as 2026-11; else this one.")] = None,
    team: Annotated[
        str | None, typer.Option("--team", help="One team only; a name that no charge has is an error.")
    ] = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a month will have cost when it is over: the fleet and every team, with a budget or without."""
    with clear_errors():
        from rose.pricing.closing import period
        from rose.pricing.spend import tables
        from rose.pricing.watch import budget
        from rose.pricing.watch import tables as watching

        check_format(as_csv, as_json)
        root = ledger_root(ledger)
        wanted = budget.current_month() if month is None else period.of_month(month)
        with logged(root, "report", f"forecast {wanted.label}"), progress_bar("Adding up"):
            rows = budget.expected(
                root, wanted, price_book, team, provenance=provenance, allow_unverified=allow_unverified
            )
        print_rows(
            lambda: [row.to_json() for row in rows],
            lambda: tables.forecast_csv(rows),
            lambda: watching.forecasts(rows),
            as_csv,
            as_json,
        )
