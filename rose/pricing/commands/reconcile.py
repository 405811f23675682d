"""`rose reconcile`: a vendor's FOCUS invoice held against the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.access import logged
from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.ledger.commands.output import json_text
from rose.pricing.commands.common import BookOption, ProvenanceOption, UnverifiedOption, clear_errors
from rose.terminal import echo_data

if TYPE_CHECKING:
    from fractions import Fraction


def reconcile_command(
    invoice: Annotated[Path, typer.Argument(help="The vendor's FOCUS 1.0 to 1.2 file: CSV, CSV in gzip, or Parquet.")],
    period: Annotated[
        str, typer.Option("--period", "-p", help="Whole UTC days: 2026-10, last-month, 2026-10-03, FROM..TO.")
    ],
    tolerance: Annotated[
        str, typer.Option("--tolerance", help="How far both may differ, device by device, in percent of the ledger's.")
    ] = "0.5%",
    ledger: LedgerOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a vendor billed beside what the ledger has, by device and day. Exit code 1 beyond the tolerance."""
    with clear_errors():
        from rose.clock import utc_us
        from rose.pricing import console, reconcile
        from rose.pricing.spend.calendar import Calendar

        root, share = ledger_root(ledger), _share(tolerance)
        wanted = Calendar().period(period, utc_us() * 1000)
        with logged(root, "report", f"reconcile {wanted.label}"), progress_bar("Reconciling"):
            made = reconcile.reconcile(
                root,
                invoice,
                wanted,
                price_book,
                tolerance=share,
                provenance=provenance,
                allow_unverified=allow_unverified,
            )
        if as_json:
            echo_data(json_text(made)[0])
        else:
            console.show(reconcile.tables(made))
    if not made["within"]:
        raise typer.Exit(1)


def _share(text: str) -> Fraction:
    """The share that a percentage such as 0.5% is. Raises PricingError for other text."""
    import re
    from fractions import Fraction

    from rose.pricing.money import PricingError

    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?%", text) or (share := Fraction(text[:-1]) / 100) > 1:
        raise PricingError(f"--tolerance {text!r} is no percentage from 0% to 100%; write it as 0.5%")
    return share
