"""The commands about one run: `rose report`, `rose borrow` and `rose correct`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger
from rose.pricing.commands.common import BookOption, RunOption, UnverifiedOption, clear_errors, print_sections
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.ledger.ledger import Ledger


def report_command(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """Report the cost of a run: time by bucket, three views of cost, cost per correct answer, and serving latency."""
    from rose.ledger import verified
    from rose.ledger.access import logged
    from rose.pricing import console
    from rose.pricing.answers import run_report

    with clear_errors():
        opened = open_ledger(ledger, allow_unverified=allow_unverified)
    with clear_errors(), logged(opened, "report", f"run {run or 'newest'}, prices {price_book or 'as decided'}"):
        built = run_report.build(opened, run, price_book)
    if as_json:
        last = verified.state(opened.folder)
        echo_data(json.dumps({**built.to_json(), "verified": None if last is None else last.to_json()}, indent=2))
    else:
        console.show(built.elements(), spaced=True)
        echo(f"Ledger {verified.text(opened.folder)}")


def borrow_command(
    ledger: LedgerOption = None,
    run: RunOption = None,
    only: Annotated[
        Literal["risk", "price", "provision", "compare", "spikes"] | None,
        typer.Option(
            "--only",
            help="One question: does borrowing harm serving or save money (risk)? What did it add to the bill (price)? "
            "What do later bursts cost (provision)? What do the same tokens cost elsewhere (compare)? What would "
            "borrowing cost if load and demand rose together (spikes, simulated)?",
        ),
    ] = None,
    price_book: BookOption = None,
    *,
    decisions: Annotated[
        Path | None,
        typer.Option(
            "--decisions",
            help="Before the report, record decisions from a CSV (device_id,device_class,decision,from,to,decided_by,"
            "reason): which serving devices were kept to be lent, and which dedicated devices were let go.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what borrowing cost in a run, how it harmed serving, and what it saved."""
    from rose.pricing.borrowing import risk
    from rose.pricing.run.priced import priced

    with clear_errors():
        opened = open_ledger(ledger)
        if decisions is not None:
            _record(opened, run, decisions)
        with priced(opened, run, price_book) as priced_run:
            sections = risk.sections(priced_run, only)
    print_sections(priced_run.run, priced_run.stamp, sections, as_json)


def _record(ledger: Ledger, run: str | None, file: Path) -> None:
    from rose.events import Provenance
    from rose.pricing.marginal_cost import scale_down
    from rose.pricing.run.priced import newest_run, run_facts

    decided = scale_down.decisions(file)
    with closing(ledger.connect()) as connection:
        facts = run_facts(connection, run or newest_run(connection))
    scale_down.record(ledger, facts.run_id, cast(Provenance, facts.provenance), decided)
    echo(f"{len(decided):,} decisions of run {facts.run_id} are in the ledger", err=True)


def correct_command(
    ledger: LedgerOption = None,
    run: Annotated[str | None, typer.Option("--run", help="Run to price; by default the newest with verdicts.")] = None,
    only: Annotated[
        Literal["cost", "frontier", "verifiers"] | None,
        typer.Option(
            "--only",
            help="One question: what a correct answer cost and which factor changes the cost most (cost), where to "
            "spend next (frontier), or which verifier makes correct answers cheapest (verifiers).",
        ),
    ] = None,
    by: Annotated[
        Literal["version", "task", "step"] | None,
        typer.Option("--by", help="Break the cost down; the rows sum to the run's cost."),
    ] = None,
    probes: Annotated[
        Path | None,
        typer.Option(
            "--probes",
            help="CSV or Parquet with columns probe, verifier, probability, correct, accepted. "
            "By default, the run's verdicts on answers whose truth is recorded.",
        ),
    ] = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show the cost per correct answer of a run, ways to lower this cost, and which verifier to buy."""
    from rose.pricing.answers import correct_answer
    from rose.pricing.run.priced import priced

    with clear_errors():
        with priced(open_ledger(ledger), run, price_book, needs="verdict") as priced_run:
            made = correct_answer.sections(priced_run, only, by, probes)
    print_sections(priced_run.run, priced_run.stamp, made, as_json)
