"""The report on the borrowing of one run: does it harm serving, and does it save money against buying devices? It also
moves one input at a time to both ends of its range, and shows the saving there. The saving is linear in its inputs."""

from collections.abc import Callable, Mapping
from contextlib import closing
from fractions import Fraction

from rose.clock import utc_us
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing.alternatives import compare
from rose.pricing.borrowing.comparison import NO_TOKENS, WOULD, comparison, in_short, worth_it
from rose.pricing.borrowing.marginal_tables import price
from rose.pricing.borrowing.provision import provision
from rose.pricing.borrowing.savings import Alternative
from rose.pricing.borrowing.spikes import spikes
from rose.pricing.charges.pricing import refuse_archived
from rose.pricing.figures import MARGINAL, Figures
from rose.pricing.marginal_cost import harm
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.marginal import Marginal, plain
from rose.pricing.marginal_cost.terms import basis_of
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run.priced import PricedRun, run_facts
from rose.pricing.stats import holdout
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.stats.verdict import exceeds
from rose.pricing.table import Paragraph, Section, Table, notes, report_table, values

WINDOWS, WITHHELD, REQUESTS = "windows", "windows withheld", "requests while leases were allowed"
LATE, LATE_WITHOUT, HARMED = "late with lending", "late without lending", "late because of lending"
_VERDICTS = {
    True: "Lending delays serving",
    False: "Lending does not delay serving",
    None: "It is not yet clear whether lending delays serving",
}
MORE = "more withheld windows that would tell"
OTHERWISE, ANYWAY = "time of dedicated devices", "fleet there anyway"


def risk(run: PricedRun) -> Section:
    m, make, compared = run.borrow, run.make, compare(run, market=False)
    way = compared.way
    parts: dict[str, Table | Paragraph] = {
        "says": Paragraph(says(m.harm)),
        "saves": Paragraph(in_short(compared, m), good=None if way is None else worth_it(way.cash, m)),
        "harm": harm_table(make, m.harm),
    }
    moved = () if way is None else swings(way, m)
    if way is None or way.cash is None or not moved:
        return Section(parts)
    cash, basis = way.cash.usd, basis_of([way.basis, m.basis])
    unknown = [plain(name) for name, term in m.terms.items() if term.unknown]
    assumed = [plain(name) for name, term in m.terms.items() if term.no_interval and not term.unknown]
    parts["depends"] = report_table(
        run.stamp,
        "What the saving depends on",
        "what | at its worse end | as it is | at its better end",
        (
            (plain(name), *(make.money(usd, MARGINAL, basis=basis, why=NO_TOKENS) for usd in (worse, cash, better)))
            for name, worse, better in moved
        ),
        view=MARGINAL,
        notes=notes(
            "Against dedicated devices, each moved alone. Ranges: 95% intervals, and the price book's ranges.",
            f"As it is {WOULD}." if m.unstated_usd else "",
            f"Unknown and left out: {', '.join(unknown)}." if unknown else "",
            f"Assumed, without a range: {', '.join(assumed)}." if assumed else "",
        ),
    )
    return Section(parts)


def without_prices(ledger: Ledger, run_id: str) -> Harm:
    """Return how much lending harmed serving in a run. This needs no price book. Raises PricingError."""
    with closing(ledger.connect()) as connection:
        refuse_archived(ledger, connection, run_id)
        run_facts(connection, run_id)
        snapshot(connection, ledger, run_id)
        nothing: dict[str, list[object]] = {"span_device": [], "span_from": [], "span_to": [], "price_changes": []}
        set_variables(connection, run_id=run_id, period_end_ns=utc_us() * 1000, **nothing)
        rows(connection, "borrowing/lease_spans")
        return harm.measure(connection, ())


def harmful(measured: Harm) -> bool | None:
    late = harm.late(measured)
    return None if late is None else exceeds(late[2].low, late[2].high)


def harm_table(make: Figures, measured: Harm) -> Table:
    requests = late = without = harmed = None
    intervals: tuple[Interval | None, Interval | None] = (None, None)
    if (compared := harm.late(measured)) is not None:
        requests, missed, added = compared
        late, without, harmed = Fraction(missed, requests), (missed - added.value) / requests, added.value
        # Less harm by lending means more late requests without it.
        ends = Interval(low=(missed - added.high) / requests, high=(missed - added.low) / requests)
        intervals = ends, Interval(low=added.low, high=added.high)
    why = measured.confounded
    figures = {
        WINDOWS: make.number(measured.windows, "count"),
        WITHHELD: make.number(measured.withheld, "count"),
        REQUESTS: make.number(requests, "count", why=why),
        LATE: make.part(late, why=why),
        LATE_WITHOUT: make.measure(without, "share", why=why, interval=intervals[0]),
        HARMED: make.measure(harmed, "requests", why=why, interval=intervals[1]),
        MORE: make.number(
            harm.more_windows(measured), "count", why=why or "more windows would not tell it from chance"
        ),
    }
    return values("Requests that missed a latency budget", figures, make.stamp, "counts")


def says(measured: Harm) -> str:
    if (compared := harm.late(measured)) is None:
        return f"Harm to serving is unknown: {(measured.confounded or '').removeprefix('confounded: ')}."
    requests, late, added = compared
    effect = f"caused {added.value:,.1f} of them" if added.value >= 0 else f"prevented {-added.value:,.1f} more"
    return (
        f"{_VERDICTS[harmful(measured)]}: {late:,} of {requests:,} requests ({late / requests:.2%}) missed a latency "
        f"budget. By estimate, lending {effect} (95% {added.low:,.1f} to {added.high:,.1f}"
        f"{'; below 0 means prevented' if added.low < 0 else ''})"
        f"{holdout.would_tell(harm.more_windows(measured))}."
    )


def swings(way: Alternative, m: Marginal) -> tuple[tuple[str, Fraction, Fraction], ...]:
    """Return how far each uncertain input alone can move the saving: (input, saving at the input's worse end, saving at
    its better end), in dollars. The input with the widest range comes first."""
    if way.cash is None or way.added_usd is None:
        return ()
    cash = way.cash.usd
    costs = [(name, term.usd, term.interval) for name, term in m.terms.items() if term.unknown is None]
    moved: list[tuple[str, Fraction, Fraction]] = []
    if m.unstated_usd:
        moved.append((ANYWAY, cash - m.unstated_usd, cash))
    else:
        costs.append((ANYWAY, m.avoidable_usd, m.avoidable_interval))
    for name, usd, interval in costs:
        if interval is not None and interval.high is not None:
            moved.append((name, cash + usd - Fraction(interval.high), cash + usd - Fraction(interval.low)))
    if (added := way.added_interval) is not None and added.high is not None:
        low, high = (cash + Fraction(end) - way.added_usd for end in (added.low, added.high))
        moved.append((OTHERWISE, low, high))
    return tuple(sorted((swing for swing in moved if swing[1] != swing[2]), key=lambda one: (one[1] - one[2], one[0])))


QUESTIONS: Mapping[str, Callable[[PricedRun], Section]] = {
    "risk": risk,
    "price": price,
    "provision": provision,
    "compare": comparison,
    "spikes": spikes,
}


def sections(run: PricedRun, only: str | None = None) -> dict[str, Section]:
    return {name: answer(run) for name, answer in QUESTIONS.items() if only in (None, name)}
