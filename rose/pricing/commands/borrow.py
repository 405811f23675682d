"""`rose borrow`: what borrowing costs, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, RunOption, clear_errors, print_sections
from rose.terminal import echo


def borrow_command(
    ledger: LedgerOption = None,
    run: RunOption = None,
    only: Annotated[
        Literal["risk", "price", "provision", "compare", "spikes"] | None,
        typer.Option(
            "--only",
            help="One question: does it harm or save (risk), what it added to the bill (price), what later bursts may "
            "cost (provision), the same tokens elsewhere (compare), load and demand together (spikes, simulated).",
        ),
    ] = None,
    price_book: BookOption = None,
    *,
    decisions: Annotated[
        Path | None,
        typer.Option(
            "--decisions",
            help="First record a CSV of device_id,device_class,decision,from,to,decided_by,reason: serving devices "
            "kept to be lent, dedicated ones let go for borrowing.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What borrowing costs in a run, whether it harms serving, and whether it was worth it."""
    from rose.pricing.borrowing import report
    from rose.pricing.run.priced import priced

    with clear_errors():
        root = ledger_root(ledger)
        if decisions is not None:
            _record(root, run, decisions)
        with priced(root, run, price_book) as priced_run:
            sections = report.sections(priced_run, only)
    print_sections(priced_run.run, priced_run.stamp, sections, as_json)


def _record(root: Path, run: str | None, file: Path) -> None:
    from contextlib import closing
    from typing import cast

    from rose.events import Provenance
    from rose.ledger import catalog
    from rose.pricing.borrowing import scale_down
    from rose.pricing.run.priced import newest_run, run_facts

    decided = scale_down.decisions(file)
    with closing(catalog.connect(root)) as connection:
        facts = run_facts(connection, run or newest_run(connection))
    scale_down.record(root, facts.run_id, cast(Provenance, facts.provenance), decided)
    echo(f"{len(decided):,} decisions of run {facts.run_id} are in the ledger", err=True)
