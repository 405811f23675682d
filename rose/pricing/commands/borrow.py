"""`rose borrow`: what borrowing costs, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, RunOption, clear_errors, print_sections
from rose.terminal import echo

borrow_app = typer.Typer(help="What borrowing costs, and whether it was worth it.")


@borrow_app.callback(invoke_without_command=True)
def borrow(
    context: typer.Context,
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
    by_lease: Annotated[
        bool, typer.Option("--by-lease", help="Divide price and provision among the leases too.")
    ] = False,
    gave_back: Annotated[
        Path | None,
        typer.Option(
            "--gave-back",
            help="CSV of device_id,from,to: when a device would have been given back had it not been lent.",
        ),
    ] = None,
    horizon: Annotated[
        int, typer.Option("--horizon", help="Seconds within which load must rise, for the provision.", min=1)
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """What borrowing costs in a run, whether it harms serving, and whether it was worth it."""
    if context.invoked_subcommand is not None:
        return
    from rose.pricing.borrowing import report, scale_down
    from rose.pricing.run.priced import priced

    with clear_errors():
        spans = () if gave_back is None else scale_down.read(gave_back)
        with priced(ledger_root(ledger), run, price_book) as priced_run:
            made = report.sections(priced_run, only, spans, by_lease=by_lease, horizon_s=horizon)
    print_sections(priced_run.run, priced_run.stamp, made, as_json)


@borrow_app.command("decide")
def decide(
    file: Annotated[Path, typer.Argument(help="CSV of device_id,device_class,decision,from,to,decided_by,reason.")],
    ledger: LedgerOption = None,
    run: RunOption = None,
) -> None:
    """Record which serving devices were kept to be lent, and which dedicated ones were let go for borrowing."""
    from contextlib import closing
    from typing import cast

    from rose.events import Provenance
    from rose.ledger import catalog
    from rose.pricing.borrowing import scale_down
    from rose.pricing.run.priced import newest_run, run_facts

    with clear_errors():
        made, root = scale_down.decisions(file), ledger_root(ledger)
        with closing(catalog.connect(root)) as connection:
            run_id = run or newest_run(connection)
            _, provenance = run_facts(connection, run_id)
        scale_down.record(root, run_id, cast(Provenance, provenance), made)
    echo(f"{len(made):,} decisions of run {run_id} are in the ledger")
