"""`rose correct`: what a correct answer costs, what would make it cheaper, and which verifier to buy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, clear_errors, print_sections


def correct_command(
    ledger: LedgerOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="Run to price; the newest with verdicts if left out.")
    ] = None,
    only: Annotated[
        Literal["cost", "frontier", "verifiers"] | None,
        typer.Option(
            "--only",
            help="One question: what it cost and which lever moves it (cost), what to spend on next (frontier), which "
            "verifier makes it cheapest (verifiers).",
        ),
    ] = None,
    by: Annotated[
        Literal["version", "task", "step"] | None,
        typer.Option("--by", help="Break the cost down; the rows sum to the run's."),
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(
            "--probes",
            help="CSV or Parquet: probe, verifier, probability, correct and, if decided, accepted. "
            "Else the run's verdicts whose truth is known.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="Accept from this probability on, in a file without `accepted`; 0.5."),
    ] = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """What a correct answer of a run cost, what would make it cheaper, and which verifier to buy."""
    from rose.pricing.answers import report
    from rose.pricing.run.priced import priced

    with clear_errors():
        with priced(ledger_root(ledger), run, price_book, needs="verdict") as priced_run:
            made = report.sections(priced_run, only, by, probes, threshold)
    print_sections(priced_run.run, priced_run.stamp, made, as_json)
