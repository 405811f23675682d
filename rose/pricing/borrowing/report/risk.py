"""Whether borrowing harms serving, and whether it really saves, of one run: both in a sentence, and the evidence.

Cash saved is linear in what dedicated devices would have added to the bill, in every term of m, and in the probability
that the fleet would have been there anyway [D]. Each is moved alone to either end of its own range: the 95% interval of
what was measured, or the price book's range. Where the book states no such probability, it runs from all to none.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import sql
from rose.clock import utc_us
from rose.ledger import catalog
from rose.pricing.borrowing import alternatives, harm
from rose.pricing.borrowing.harm import Harm
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.alternatives import in_short
from rose.pricing.borrowing.report.marginal import plain
from rose.pricing.borrowing.report.savings import NO_TOKENS, WOULD
from rose.pricing.borrowing.savings import Alternative
from rose.pricing.borrowing.terms import basis_of
from rose.pricing.charges import preconditions
from rose.pricing.figures import MARGINAL, Figures
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run.priced import PricedRun, run_facts
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.table import Paragraph, Section, Table, columns, notes, values

_CONFOUNDED = "confounded: "
#: Rows of the harm.
WINDOWS, WITHHELD, REQUESTS = "windows", "windows withheld", "requests while leases were allowed"
LATE, LATE_WITHOUT, HARMED = "late with lending", "late without lending", "late because of lending"
#: What is varied besides the terms of m.
OTHERWISE, ANYWAY = "time of dedicated devices", "fleet there anyway"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swing:
    """Dollars of cash saved with one thing at the worse and at the better end of its range."""

    name: str
    worse_usd: Fraction
    better_usd: Fraction

    @property
    def width_usd(self) -> Fraction:
        """How far it moves cash saved."""
        return self.better_usd - self.worse_usd


def risk(run: PricedRun) -> Section:
    """Return whether lending harms serving, whether borrowing saves, and what that depends on."""
    m = run.borrow
    turns = rows(run.connection, "borrowing/turn_lengths")
    compared = alternatives.compare(run.charged, run.allocation, m, run.groups, turns, run.cost.spreads, market=False)
    parts: dict[str, Table | Paragraph] = {
        "says": Paragraph(says(m.harm)),
        "saves": Paragraph(in_short(compared, m)),
        "harm": harm_table(run.make, m.harm),
    }
    way = compared.alternatives[0] if compared.alternatives else None
    moved = () if way is None else swings(way, m)
    if way is None or way.cash is None or not moved:
        return Section(parts)
    cash, basis = way.cash.usd, basis_of([way.basis, m.basis])
    made = [
        (
            plain(swing.name),
            *(
                run.make.money(usd, MARGINAL, basis=basis, why=NO_TOKENS)
                for usd in (swing.worse_usd, cash, swing.better_usd)
            ),
        )
        for swing in moved
    ]
    unknown = [plain(name) for name, term in m.terms.items() if term.unknown]
    assumed = [plain(name) for name, term in m.terms.items() if term.no_interval and not term.unknown]
    parts["depends"] = Table(
        title="What cash saved depends on",
        view=MARGINAL,
        stamp=run.stamp,
        columns=columns("what", "at its worse end", "as it is", "at its better end"),
        rows=tuple(made),
        notes=notes(
            "Against dedicated devices, each moved alone. Ranges: 95% intervals, and those of the price book.",
            f"As it is {WOULD}." if m.unstated_usd else "",
            f"Not known, so not in it: {', '.join(unknown)}." if unknown else "",
            f"Assumed, without a range: {', '.join(assumed)}." if assumed else "",
        ),
    )
    return Section(parts)


def without_prices(root: Path, run_id: str) -> Harm:
    """Return what withheld windows say of a run, which takes no price book.

    Raises PricingError for an unknown run, one of mixed provenance, and one of which events were archived.
    """
    with closing(catalog.connect(root)) as connection:
        preconditions.refuse_archived(root, connection, run_id)
        run_facts(connection, run_id)
        snapshot(connection, root, run_id)
        set_variables(connection, run_id=run_id, period_end_ns=utc_us() * 1000, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        return harm.measure(connection, (), by_lease=False)


def harmful(measured: Harm) -> bool | None:
    """Return whether lending makes serving late; False where chance may explain it, None where it is not known."""
    late = harm.late(measured)
    return None if late is None else late[2].low > 0


def harm_table(make: Figures, measured: Harm) -> Table:
    """Requests of lent time that missed a budget, and as many had leases been withheld."""
    found, why = harm.late(measured), measured.confounded
    requests, late, added = found or (0, 0, None)
    without = spread = share = None
    if added is not None:
        share = (late - added.value) / requests
        # With less added, more were late without.
        without = Interval(low=(late - added.high) / requests, high=(late - added.low) / requests)
        spread = Interval(low=added.low, high=added.high)
    figures = {
        WINDOWS: make.number(measured.windows, "count"),
        WITHHELD: make.number(measured.withheld, "count"),
        REQUESTS: make.number(None if found is None else requests, "count", why=why),
        LATE: make.part(None if found is None else late, requests or 1, why=why),
        LATE_WITHOUT: make.measure(share, "share", why=why, interval=without),
        HARMED: make.measure(None if added is None else added.value, "requests", why=why, interval=spread),
    }
    return values("Requests that missed a latency budget", figures, make.stamp, "counts")


def says(measured: Harm) -> str:
    """Return whether lending harms serving, in a sentence."""
    found = harm.late(measured)
    if found is None:
        return f"Whether lending harms serving is not known: {(measured.confounded or '').removeprefix(_CONFOUNDED)}."
    requests, late, added = found
    verdict = (
        "Lending makes serving late"
        if added.low > 0
        else "Serving is late less often with lending"
        if added.high < 0
        else "No harm to serving can be told from chance"
    )
    return (
        f"{verdict}: {late / requests:.2%} of {requests:,} requests missed a latency budget, and "
        f"{(late - added.value) / requests:.2%} would have without lending (95% "
        f"{max(0.0, (late - added.high) / requests):.2%} to {max(0.0, (late - added.low) / requests):.2%})."
    )


def swings(way: Alternative, m: Marginal) -> tuple[Swing, ...]:
    """How far each thing moves cash saved against a way, the furthest first; empty where it is not known."""
    if way.cash is None or way.added_usd is None:
        return ()
    cash = way.cash.usd
    made = [_by_cost(name, cash, term.usd, term.interval) for name, term in m.terms.items() if term.unknown is None]
    if (there := way.added_interval) is not None and there.high is not None:
        moved = (Fraction(end) - way.added_usd for end in (there.low, there.high))
        made.append(_swing(OTHERWISE, *(cash + more for more in moved)))
    if m.unstated_usd:
        made.append(_swing(ANYWAY, cash - m.unstated_usd, cash))
    else:
        made.append(_by_cost(ANYWAY, cash, m.avoidable_usd, m.avoidable_interval))
    known = [swing for swing in made if swing is not None and swing.width_usd]
    return tuple(sorted(known, key=lambda swing: (-swing.width_usd, swing.name)))


def _by_cost(name: str, cash: Fraction, usd: Fraction, interval: Interval | None) -> Swing | None:
    """Of something that borrowing is charged, so that more of it saves less."""
    if interval is None or interval.high is None:
        return None
    return _swing(name, *(cash + usd - Fraction(end) for end in (interval.low, interval.high)))


def _swing(name: str, one_usd: Fraction, other_usd: Fraction) -> Swing:
    return Swing(name=name, worse_usd=min(one_usd, other_usd), better_usd=max(one_usd, other_usd))
