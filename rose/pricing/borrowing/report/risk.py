"""Whether borrowing harms serving, and whether it really saves, of one run: both in a sentence, and the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import sql
from rose.clock import utc_us
from rose.ledger import catalog
from rose.ledger.examine import Seen
from rose.pricing.borrowing import alternatives, harm
from rose.pricing.borrowing.harm import Harm
from rose.pricing.borrowing.report import alternatives as compare_report
from rose.pricing.borrowing.report import marginal as price_report
from rose.pricing.borrowing.report import provision as provision_report
from rose.pricing.borrowing.report import spikes as spikes_report
from rose.pricing.borrowing.report.alternatives import CompareDocument
from rose.pricing.borrowing.report.common import Head, counted, head
from rose.pricing.borrowing.report.marginal import PriceDocument
from rose.pricing.borrowing.report.provision import ProvisionDocument
from rose.pricing.borrowing.report.savings import NO_TOKENS
from rose.pricing.borrowing.report.spikes import SpikesDocument
from rose.pricing.borrowing.sensitivity import swings
from rose.pricing.charges import preconditions
from rose.pricing.figures import MARGINAL, Figure, Figures
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run.priced import PricedRun, priced, run_facts
from rose.pricing.stats.bootstrap import Interval

_CONFOUNDED = "confounded: "


@dataclass(frozen=True, kw_only=True, slots=True)
class HarmRow:
    """Requests of lent time that missed a budget, and as many had leases been withheld, with its 95% interval.

    `told`: True for harm, False where none can be told from chance, None where nothing can be told.
    """

    told: bool | None
    says: str
    windows: Figure
    withheld: Figure
    requests: Figure
    late: Figure
    late_without: Figure
    #: Missed budgets that lending added; below zero where there were fewer.
    added: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class HarmSaid:
    """What can be told of harm without a price: `told` and `says` as in HarmRow, and how many windows were withheld."""

    told: bool | None
    says: str
    windows: int
    withheld: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SwingRow:
    """Cash saved with one thing at the worse and at the better end of its range."""

    worse: Figure
    better: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class RiskDocument:
    head: Head
    harm: HarmRow
    compare: CompareDocument
    price: PriceDocument
    provision: ProvisionDocument
    #: What cash saved depends on, the furthest first, about `cash_saved`, which is as the price book has it.
    cash_saved: Figure
    swings: Mapping[str, SwingRow]
    #: Simulated, as every figure in it says.
    spikes: SpikesDocument


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    *,
    seen: Seen | None = None,
) -> RiskDocument:
    """The risk of a run. Raises what `rose.pricing.run.report.build` raises."""
    with priced(root, run_id, price_book, allow_unverified, seen) as run:
        saved, moved = _swings(run)
        return RiskDocument(
            head=head(run),
            harm=harm_row(run.make, run.borrow.harm),
            compare=compare_report.document(run),
            price=price_report.document(run),
            provision=provision_report.document(run),
            cash_saved=saved,
            swings=moved,
            spikes=spikes_report.document(run),
        )


def without_prices(root: Path, run_id: str) -> HarmSaid:
    """Whether lending harms serving in a run, which takes no price book.

    Raises PricingError for an unknown run, one of mixed provenance, and one of which events were archived.
    """
    with closing(catalog.connect(root)) as connection:
        preconditions.refuse_archived(root, connection, run_id)
        run_facts(connection, run_id)
        snapshot(connection, root, run_id)
        set_variables(connection, run_id=run_id, period_end_ns=utc_us() * 1000, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        measured = harm.measure(connection, (), by_lease=False)
    found = harm.late(measured)
    requests, late, added = found or (0, 0, None)
    ends = None if added is None else (added.value, added.low, added.high)
    return HarmSaid(
        told=None if ends is None else ends[1] > 0,
        says=_says(measured, requests, late, ends),
        windows=measured.windows,
        withheld=measured.withheld,
    )


def harm_row(make: Figures, measured: Harm) -> HarmRow:
    """What the withheld windows say of missed budgets."""
    found = harm.late(measured)
    requests, late, added = found or (0, 0, None)
    why = measured.confounded
    spread = None if added is None else Interval(low=round(added.low, 1), high=round(added.high, 1))
    # With less added, more were late without.
    without = (
        None if added is None else Interval(low=(late - added.high) / requests, high=(late - added.low) / requests)
    )
    told = None if added is None else added.low > 0
    return HarmRow(
        told=told,
        says=_says(measured, requests, late, None if added is None else (added.value, added.low, added.high)),
        windows=make.number(measured.windows, "count"),
        withheld=make.number(measured.withheld, "count"),
        requests=make.number(None if found is None else requests, "count", why=why),
        late=make.part(None if found is None else late, requests or 1, why=why),
        late_without=counted(
            make, None if added is None else (late - added.value) / requests, "share", why=why, interval=without
        ),
        added=counted(make, None if added is None else round(added.value, 1), "requests", why=why, interval=spread),
    )


def _says(measured: Harm, requests: int, late: int, added: tuple[float, float, float] | None) -> str:
    if added is None:
        return f"Whether lending harms serving is not known: {(measured.confounded or '').removeprefix(_CONFOUNDED)}."
    value, low, high = added
    verdict = (
        "Lending makes serving late"
        if low > 0
        else "Serving is late less often with lending"
        if high < 0
        else "No harm to serving can be told from chance"
    )
    return (
        f"{verdict}: {late / requests:.2%} of {requests:,} requests missed a latency budget, and "
        f"{(late - value) / requests:.2%} would have without lending (95% {max(0.0, (late - high) / requests):.2%} to "
        f"{max(0.0, (late - low) / requests):.2%})."
    )


def _swings(run: PricedRun) -> tuple[Figure, dict[str, SwingRow]]:
    make, m = run.make, run.borrow
    comparison = alternatives.compare(
        run.charged,
        run.allocation,
        m,
        run.groups,
        rows(run.connection, "borrowing/turn_lengths"),
        run.cost.spreads,
        market=False,
    )
    way = comparison.alternatives[0] if comparison.alternatives else None
    cash = None if way is None or way.cash is None else way.cash.usd
    basis = "measured" if way is None else way.basis

    def money(usd: Fraction | None) -> Figure:
        return make.money(usd, MARGINAL, basis=basis, why=NO_TOKENS)

    moved = () if way is None else swings(way, m)
    return money(cash), {
        swing.name: SwingRow(worse=money(swing.worse_usd), better=money(swing.better_usd)) for swing in moved
    }
