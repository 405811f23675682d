"""`rose correct`: what a correct answer costs, what would make it cheaper, and which verifier to buy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, UnverifiedOption, clear_errors
from rose.terminal import echo_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rose.pricing.run.priced import PricedRun
    from rose.pricing.table import Element

RunOption = Annotated[str | None, typer.Option("--run", help="Run to price; the one that began last if left out.")]

correct_app = typer.Typer(
    no_args_is_help=True, help="What a correct answer costs, what would make it cheaper, which verifier to buy."
)


@correct_app.command("show")
def show(
    ledger: LedgerOption = None,
    run: RunOption = None,
    by: Annotated[
        Literal["version", "task", "step"] | None,
        typer.Option("--by", help="Break the cost down; the rows sum to the run's."),
    ] = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """What a correct answer of a run cost at each price line, C3 with its interval, and which lever moves it most."""
    from rose.pricing.answers.report.cost_per_correct import answers
    from rose.pricing.answers.report.tables import answer_tables

    _command(
        ledger,
        run,
        price_book,
        allow_unverified,
        as_json,
        lambda priced_run: answers(priced_run, by),
        answer_tables,
    )


@correct_app.command("frontier")
def frontier(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """Where the next dollar, or a slack second, lowers the cost of a correct answer: inference or training."""
    from rose.pricing.answers.report.frontier import outlook
    from rose.pricing.answers.report.tables import outlook_tables

    _command(ledger, run, price_book, allow_unverified, as_json, outlook, outlook_tables)


@correct_app.command("verifiers")
def verifiers(
    ledger: LedgerOption = None,
    run: RunOption = None,
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
    allow_unverified: UnverifiedOption = False,
) -> None:
    """How well each verifier reports probabilities, and with which of them a correct answer is cheapest."""
    from rose.pricing.answers.report.tables import procurement_tables
    from rose.pricing.answers.report.verifiers import procurement

    _command(
        ledger,
        run,
        price_book,
        allow_unverified,
        as_json,
        lambda priced_run: procurement(priced_run, probes, threshold),
        procurement_tables,
    )


def _command(
    ledger: Path | None,
    run: str | None,
    price_book: str | None,
    allow_unverified: bool,
    as_json: bool,
    make: Callable[[PricedRun], Any],
    tables: Callable[[Any], Iterable[Element]],
) -> None:
    """Price the run, make the document, and print it."""
    from contextlib import closing

    from rose.ledger import catalog
    from rose.pricing import console
    from rose.pricing.run.priced import newest_run, priced

    with clear_errors():
        root = ledger_root(ledger)
        with closing(catalog.connect(root)) as connection:
            run_id = run or newest_run(connection, "any")
        with priced(root, run_id, price_book, allow_unverified) as priced_run:
            document = make(priced_run)
    if as_json:
        echo_data(json.dumps(document.to_json(), indent=2))
        return
    console.show(tables(document), spaced=True)
