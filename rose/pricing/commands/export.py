"""`rose export`: FOCUS rows and a workbook to hand on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.access import logged
from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.pricing.commands.common import (
    BookOption,
    FromOption,
    ProvenanceOption,
    ToOption,
    UnverifiedOption,
    clear_errors,
)
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.pricing.export.bill import Bill
    from rose.pricing.export.out import Written

export_app = typer.Typer(no_args_is_help=True, help="Files to hand on: FOCUS rows, a workbook.")

OutOption = Annotated[Path, typer.Option("--out", "-o", help="The file to write; its suffix says the format.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]
CloseOption = Annotated[str | None, typer.Option("--close", help="A closed period, with its corrections.")]
RunOption = Annotated[
    str | None, typer.Option("--run", help="One run; what borrowing added to its bill is then known.")
]


@export_app.command("focus")
def focus_command(
    out: OutOption,
    ledger: LedgerOption = None,
    close: CloseOption = None,
    from_hour: FromOption = None,
    to_hour: ToOption = None,
    run: RunOption = None,
    provenance: ProvenanceOption = None,
    price_book: BookOption = None,
    *,
    force: ForceOption = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """FOCUS 1.2 rows as .parquet or .csv: of a closed period, or of one that may still change. Checked row by row."""
    with clear_errors(), logged(ledger_root(ledger), "export", str(out)), progress_bar("Exporting") as progress:
        from rose.pricing.export import focus
        from rose.pricing.export import out as writing

        writing.suffix_of(out, focus.SUFFIXES, "FOCUS")
        writing.refuse_existing(out, force)
        bill = _bill(ledger, close, (from_hour, to_hour), run, provenance, price_book, allow_unverified)
        done = focus.write(bill, out, force=force, progress=progress)
    _say(done, ledger, as_json)


@export_app.command("workbook")
def workbook_command(
    out: OutOption,
    ledger: LedgerOption = None,
    close: CloseOption = None,
    from_hour: FromOption = None,
    to_hour: ToOption = None,
    run: RunOption = None,
    provenance: ProvenanceOption = None,
    price_book: BookOption = None,
    *,
    force: ForceOption = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """An Excel workbook (.xlsx): who pays, for what, by day, run, policy version and cause, with the prices."""
    with clear_errors(), logged(ledger_root(ledger), "export", str(out)), progress_bar("Exporting") as progress:
        from rose.pricing.export import out as writing
        from rose.pricing.export import workbook

        writing.suffix_of(out, workbook.SUFFIXES, "a workbook")
        writing.refuse_existing(out, force)
        bill = _bill(ledger, close, (from_hour, to_hour), run, provenance, price_book, allow_unverified)
        done = workbook.write(bill, out, force=force, progress=progress)
    _say(done, ledger, as_json)


@export_app.command("check")
def check_command(
    file: Annotated[Path, typer.Argument(help="A FOCUS file that ROSE exported, .parquet or .csv.")],
    ledger: LedgerOption = None,
    close: Annotated[str | None, typer.Option("--close", help="Compare it with this closed period too.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check every row of a FOCUS file, and that it adds up; exits 1 if a rule does not hold."""
    with clear_errors(), progress_bar("Checking"):
        from rose.pricing.export import bill, focus, focus_check

        charged = (
            None
            if close is None
            else focus.charges_nano(bill.of_close(ledger_root(ledger), close, allow_unverified=True))
        )
        checked = focus_check.check(file, charged)
    if as_json:
        echo_data(json.dumps({"file": str(file), **checked.to_json()}, indent=2))
    elif checked.faults:
        echo(f"{file} breaks {len(checked.faults)} rules:", *checked.text(file.name).splitlines())
    else:
        from rose.pricing.money import format_usd

        echo(f"{file}: {checked.rows:,} rows, {format_usd(checked.totals['billed'])} billed: good")
    if checked.faults:
        raise typer.Exit(1)


def _bill(
    ledger: Path | None,
    close: str | None,
    period: tuple[str | None, str | None],
    run: str | None,
    provenance: str | None,
    price_book: str | None,
    allow_unverified: bool,
) -> Bill:
    """What the options ask for. Raises PricingError for options that do not go together."""
    from rose.pricing.closing.period import hour
    from rose.pricing.export import bill
    from rose.pricing.money import PricingError
    from rose.pricing.price_books import choice

    root = ledger_root(ledger)
    if close is not None:
        given = (*period, run, provenance, price_book)
        options = ("--from", "--to", "--run", "--provenance", "--price-book")
        if also := [option for option, value in zip(options, given, strict=True) if value is not None]:
            raise PricingError(f"--close is whole and has its own prices; leave out {', '.join(also)}")
        return bill.of_close(root, close, allow_unverified=allow_unverified)
    if period == (None, None) and run is None:
        raise PricingError("say what to export: --close, or --run, or --from and --to")
    from_ns = None if period[0] is None else hour(period[0], "--from")
    to_ns = None if period[1] is None else hour(period[1], "--to")
    return bill.of_period(
        root,
        choice.choose(root, price_book, run_id=run, from_ns=from_ns, to_ns=to_ns, provenance=provenance),
        from_ns=from_ns,
        to_ns=to_ns,
        run_id=run,
        provenance=provenance,
        allow_unverified=allow_unverified,
    )


def _say(done: Written, ledger: Path | None, as_json: bool) -> None:
    from rose.ledger import verified
    from rose.pricing.money import format_usd

    echo(f"Ledger {verified.text(ledger_root(ledger))}", err=True)

    if as_json:
        echo_data(json.dumps(done.to_json(), indent=2))
        return
    totals = ", ".join(f"{name} {format_usd(nano)}" for name, nano in done.totals.items() if "/" not in name)
    echo(f"{done.path}: {done.rows:,} rows; {totals}", f"SHA-256 {done.sha256}")
