"""`rose invoice`: what a team is sent of a period, as a page, as PDF or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rose.ledger.access import logged
from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.pricing.commands.common import (
    BookOption,
    CurrencyOption,
    FiscalOption,
    PeriodOption,
    ProvenanceOption,
    TzOption,
    UnverifiedOption,
    clear_errors,
)
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.pricing.export.out import Written
    from rose.pricing.invoices.invoice import Invoice


def invoice_command(
    period: PeriodOption = None,
    team: Annotated[str | None, typer.Option("--team", help="The team; `unallocated` is what is of none.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The .html file to write; with --all a folder, made if missing.")
    ] = None,
    tz: TzOption = None,
    fiscal_start: FiscalOption = None,
    currency: CurrencyOption = None,
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Of every team, and of what is unallocated.")] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="The final invoices that were issued, of one --team or all.")
    ] = False,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Issue it although hours of it were invoiced to the team before.")
    ] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="The same as PDF beside it, by a Chromium on PATH.")] = False,
    paper: Annotated[Literal["A4", "letter"], typer.Option("--paper", help="Size of the PDF.")] = "A4",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a team is charged for a period: final if the period is closed, a marked draft until then."""
    with clear_errors():
        from rose.clock import utc_us
        from rose.pricing.invoices import build, register
        from rose.pricing.invoices import pdf as printing
        from rose.pricing.invoices.summary import summary
        from rose.pricing.money import PricingError
        from rose.pricing.spend.calendar import calendar_of
        from rose.pricing.spend.currency import OWN

        if listed:
            if every or pdf or out is not None or period is not None:
                raise PricingError("--list shows what was issued: give --team, --json and --ledger alone with it")
            _list(ledger_root(ledger), team, as_json)
            return
        if every == (team is not None):
            raise PricingError("say whose invoice: --team TEAM, or --all")
        if out is None and (pdf or not as_json):
            raise PricingError("say where to write it: --out FILE.html, or with --all --out FOLDER; or give --json")
        if pdf:
            printing.browser()
        root = ledger_root(ledger)
        asked = period or "this-month"
        wanted = calendar_of(root, tz, fiscal_start, price_book, (asked,)).period(asked, utc_us() * 1000)
        if out is not None:
            _check_place(out, every=every, pdf=pdf, force=force)
        with (
            logged(root, "export", f"invoice {wanted.label} {team or 'of all'}"),
            progress_bar("Invoicing") as progress,
        ):
            made = build.invoices(
                root,
                wanted,
                price_book,
                currency=currency or OWN,
                provenance=provenance,
                allow_unverified=allow_unverified,
            )
            made = made if team is None else (build.of_team(made, team),)
            # Before anybody has it: what is sent is on record.
            new = () if out is None else register.issue(root, made, allow_overlap=allow_overlap)
            files: list[list[Written]] = []
            for number, invoice in enumerate(made):
                progress(number, len(made))
                path = None if out is None else out / f"{invoice.number}.html" if every else out
                files.append([] if path is None else _write(invoice, path, paper if pdf else None, force))
        for one in new:
            if one.overlaps:
                echo(f"{one.number} has hours of {', '.join(one.overlaps)}, which the team was issued", err=True)
        if as_json:
            data = [_json(invoice, written) for invoice, written in zip(made, files, strict=True)]
            whole = {"summary": summary(made).to_json(), "invoices": data}
            echo_data(json.dumps(whole if every else data[0], indent=2))
            return
        for invoice, written in zip(made, files, strict=True):
            _say(invoice, written)
        for line in summary(made).lines if every else ():
            echo(line)


def _list(root: Path, team: str | None, as_json: bool) -> None:
    from rose.pricing import console
    from rose.pricing.invoices import register

    rows = [one for one in register.issued(root) if team in (None, one.team)]
    if as_json:
        echo_data(json.dumps([one.to_json() for one in rows], indent=2))
    elif rows:
        console.show([register.table(rows)])
    else:
        echo(f"no final invoice was issued{'' if team is None else f' to {team}'} yet")


def _check_place(out: Path, *, every: bool, pdf: bool, force: bool) -> None:
    """Before the work, as well as after it. Raises PricingError."""
    from rose.pricing.export import out as writing
    from rose.pricing.money import PricingError

    if not every:
        for path in (out, out.with_suffix(".pdf")) if pdf else (out,):
            writing.suffix_of(path, (".html", ".pdf") if path is not out else (".html",), "an invoice")
            writing.refuse_existing(path, force)
        return
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise PricingError(f"--out {out} cannot be made a folder: {error.strerror}") from None


def _write(invoice: Invoice, path: Path, paper: str | None, force: bool) -> list[Written]:
    """The page, and with a paper the PDF beside it."""
    from rose.pricing.export import out as writing
    from rose.pricing.invoices import page, pdf

    def html(temporary: Path) -> tuple[int, dict[str, int]]:
        temporary.write_text(page.render(invoice), encoding="utf-8")
        return len(invoice.lines), {"total": invoice.total_nano}

    def printed(temporary: Path) -> tuple[int, dict[str, int]]:
        pdf.print_pdf(page.render(invoice, paper=paper), temporary)
        return len(invoice.lines), {"total": invoice.total_nano}

    written = [writing.write(path, force, html)]
    if paper is not None:
        written.append(writing.write(path.with_suffix(".pdf"), force, printed))
    return written


def _json(invoice: Invoice, written: list[Written]) -> dict[str, Any]:
    return {**invoice.to_json(), "files": [{"path": str(file.path), "sha256": file.sha256} for file in written]}


def _say(invoice: Invoice, written: list[Written]) -> None:
    from rose.pricing.money import format_money

    total = format_money(invoice.total_nano, invoice.stamp.currency)
    state = "final" if invoice.final else f"not final: {', '.join(invoice.marks)}"
    echo(f"{invoice.number}: {total} for {invoice.team}, {state}")
    for file in written:
        echo(f"  {file.path}, SHA-256 {file.sha256}")
