"""`rose borrow`: what borrowing costs, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, RunOption, UnverifiedOption, clear_errors
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.pricing.borrowing.scale_down import Span
    from rose.pricing.table import Element

borrow_app = typer.Typer(no_args_is_help=True, help="What borrowing costs, and whether it was worth it.")

LeaseOption = Annotated[bool, typer.Option("--by-lease", help="Divide the figures among the leases too.")]
SpansOption = Annotated[
    Path | None,
    typer.Option(
        "--gave-back",
        help="CSV of device_id,from,to: when a device would have been given back had it not been lent.",
    ),
]


@borrow_app.command("price")
def price(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    by_lease: LeaseOption = False,
    gave_back: SpansOption = None,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """The marginal price of borrowed time, term by term, with what each rests on."""
    from rose.pricing.borrowing.report import marginal as documents
    from rose.pricing.borrowing.report import tables

    _show(
        lambda: documents.build(
            ledger_root(ledger), run, price_book, allow_unverified, by_lease=by_lease, gave_back=_spans(gave_back)
        ),
        tables.price,
        as_json,
    )


@borrow_app.command("provision")
def provision(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    by_lease: LeaseOption = False,
    horizon: Annotated[int, typer.Option("--horizon", help="Seconds within which load must rise.", min=1)] = 10,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """What to provide for bursts that come while a device is lent, what they cost, and the balance by day."""
    from rose.pricing.borrowing.report import provision as provide
    from rose.pricing.borrowing.report import tables

    _show(
        lambda: provide.build(
            ledger_root(ledger), run, price_book, allow_unverified, by_lease=by_lease, horizon_s=horizon
        ),
        tables.provision,
        as_json,
    )


@borrow_app.command("compare")
def compare(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    gave_back: SpansOption = None,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """The borrowed tokens on dedicated, on-demand and spot devices, or not made, and where borrowing stops paying."""
    from rose.pricing.borrowing.report import alternatives as documents
    from rose.pricing.borrowing.report import tables

    _show(
        lambda: documents.build(ledger_root(ledger), run, price_book, allow_unverified, gave_back=_spans(gave_back)),
        tables.compare,
        as_json,
    )


@borrow_app.command("risk")
def risk(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """Whether borrowing harms serving, whether it saves, and what that depends on; with --json all of the evidence."""
    from rose.pricing.borrowing.report import risk as documents
    from rose.pricing.borrowing.report import tables

    _show(lambda: documents.build(ledger_root(ledger), run, price_book, allow_unverified), tables.risk, as_json)


@borrow_app.command("spikes")
def spikes(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """Simulated: what borrowing would cost if serving load and rollout demand rose together."""
    from rose.pricing.borrowing.report import spikes as documents
    from rose.pricing.borrowing.report import tables

    _show(
        lambda: documents.build(ledger_root(ledger), run, price_book, allow_unverified),
        tables.spikes,
        as_json,
    )


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


def _spans(file: Path | None) -> tuple[Span, ...]:
    from rose.pricing.borrowing import scale_down

    return () if file is None else scale_down.read(file)


def _show(build: Callable[[], Any], tables: Callable[[Any], Iterable[Element]], as_json: bool) -> None:
    from rose.pricing import console
    from rose.pricing.document import to_json

    with clear_errors():
        document = build()
    if as_json:
        echo_data(json.dumps(to_json(document), indent=2))
        return
    console.show(tables(document), spaced=True)
