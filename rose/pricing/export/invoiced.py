"""What the teams are sent of a closed period, so that a workbook re-adds to the invoices."""

from __future__ import annotations

from collections.abc import Mapping

from rose.pricing.charges import NothingChargedError
from rose.pricing.closing.period import Period
from rose.pricing.export.bill import Bill
from rose.pricing.figures import AMORTIZED
from rose.pricing.invoices import build
from rose.pricing.invoices.invoice import Invoice, Kind
from rose.pricing.table import Column, Table

#: Of the table; and its columns that sum to the close, and to all invoices.
NAME, CHARGES, TOTAL = "Invoices", "charges", "invoiced"
_KINDS: Mapping[Kind, str] = {
    "charge": CHARGES,
    "correction": "corrections of earlier periods",
    "shared": "shared costs",
    "credit": "credits",
}


def table(bill: Bill) -> Table:
    """By team, the sums of the invoices of the close that the bill is of, as `rose invoice --all` makes them."""
    period = Period(bill.charges.from_ns, bill.charges.to_ns)
    made: tuple[Invoice, ...] = ()
    try:
        # Whoever made the bill has allowed it.
        made = build.invoices(bill.root, period, provenance=bill.stamp.provenance, allow_unverified=True)
    except NothingChargedError:
        pass
    return Table(
        name=NAME,
        title="What the teams are sent",
        view=AMORTIZED,
        notes=(
            "The charges are those that the period was closed with. What was posted to it since is on the invoices of "
            "the period in which it was posted.",
        ),
        columns=(Column("team"), *(Column(name, "money") for name in (*_KINDS.values(), TOTAL))),
        rows=tuple((one.team, *(one.sum_nano(kind) for kind in _KINDS), one.total_nano) for one in made),
        stamp=bill.stamp,
    ).with_total()
