"""The documents on borrowing as tables, each with its view, currency and provenance."""

from __future__ import annotations

from collections.abc import Iterator

from rose.pricing.borrowing.marginal import TERMS
from rose.pricing.borrowing.report.alternatives import PROVISION, CompareDocument
from rose.pricing.borrowing.report.common import BREAK_EVEN_CASH, BREAK_EVEN_TIME
from rose.pricing.borrowing.report.marginal import PriceDocument
from rose.pricing.borrowing.report.provision import ProvisionDocument
from rose.pricing.borrowing.report.risk import RiskDocument
from rose.pricing.borrowing.report.savings import WOULD
from rose.pricing.borrowing.report.spikes import SpikesDocument
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.document import heading
from rose.pricing.figures import MARGINAL, Figure, why_no_interval
from rose.pricing.table import Element, Paragraph, Row, Table, columns, notes

_INTERVAL = "95% interval"


def price(document: PriceDocument) -> Iterator[Element]:
    """What `rose borrow price` shows."""
    stamp, total = document.head.stamp, document.total
    yield heading(document.head.run, stamp)
    rows = []
    for name, term in document.terms.items():
        basis = term.in_all.basis
        # What is confounded was not measured, whatever it was counted from.
        named = basis in term.rests_on or term.rests_on.startswith("confounded")
        rests_on = term.rests_on if named else f"{basis}: {term.rests_on}"
        rows.append((_plain(name), term.in_all.text, term.in_all.short_interval, term.per_device_hour.text, rests_on))
    borrowed = f"{document.borrowed.text} borrowed" + (f"; {total.rests_on}" if total.rests_on else "")
    footer: list[Row] = [("m", total.in_all.text, total.in_all.short_interval, total.per_device_hour.text, borrowed)]
    if document.avoidable.value:
        spans = f"; {document.gave_back.text} in spans given" if document.gave_back.value else ""
        footer.append(("avoidable device time", document.avoidable.text, "-", "-", f"amortized{spans}"))
        footer.append(("charged", document.charged.text, "-", "-", "m and the avoidable device time"))
    yield Table(
        title="What borrowing added to the bill (m)",
        view=MARGINAL,
        stamp=stamp,
        columns=columns("term", "in all", _INTERVAL, "per device-hour", "rests on", text=("rests on",)),
        rows=tuple(rows),
        footer=tuple(footer),
        notes=notes(document.gate, why_no_interval(term.in_all for term in document.terms.values())),
    )
    if document.metered:
        yield Table(
            title="Power meters",
            view="counts",
            stamp=stamp,
            columns=columns("class", "extra power while lent", _INTERVAL, "metered", "anyway", "extra"),
            rows=tuple(
                (
                    name,
                    f"{meter.extra_power.value:+.1f} W",
                    _watts(meter.extra_power),
                    *map(_kwh, (meter.metered, meter.baseline, meter.extra)),
                )
                for name, meter in document.metered.items()
            ),
        )
    if document.leases:
        yield _leases(document)


def _leases(document: PriceDocument) -> Table:
    terms = [name for name in TERMS if any(lease.terms[name].value for lease in document.leases)]
    prefix = f"{document.head.run.run_id}-"
    return Table(
        title="By lease",
        view=MARGINAL,
        stamp=document.head.stamp,
        columns=columns("lease", "borrowed", *map(_plain, terms), "m", "avoidable"),
        rows=tuple(
            (
                (lease.lease_id or "no lease").removeprefix(prefix),
                lease.borrowed.text,
                *(lease.terms[name].text for name in terms),
                lease.total.text,
                lease.avoidable.text,
            )
            for lease in document.leases
        ),
        notes=("Each column sums to the run's figure, to the nano-dollar; a term that is 0 for all is left out.",),
    )


def provision(document: ProvisionDocument) -> Iterator[Element]:
    """What `rose borrow provision` shows."""
    stamp = document.head.stamp
    yield heading(document.head.run, stamp)
    yield rates(document)
    hourly, accrued_by = document.realised_per_device_hour, "rates known when each day began, times lent time"
    unknown = document.not_provided_for
    yield Table(
        title="Provided for, and what it came to",
        view=MARGINAL,
        stamp=stamp,
        columns=columns("what", "in all", _INTERVAL, "rests on", text=("rests on",)),
        rows=(
            ("accrued", document.accrued.text, "-", accrued_by),
            ("realised", document.realised.text, document.realised.short_interval, rests_on(document)),
            ("realised per borrowed device-hour", hourly.text, hourly.short_interval, ""),
            (BREAK_EVEN_TIME, document.break_even.text, "-", "for a borrowed device-hour; dedicated ones, amortized"),
        ),
        notes=notes(
            why_no_interval([document.realised]),
            f"Nothing is provided for {unknown.text} lent at a load that is not known." if unknown.value else "",
            f"The {BREAK_EVEN_CASH} is another figure: `rose borrow compare` has it.",
        ),
    )
    yield roll_forward(document)
    if document.leases:
        yield Table(
            title="Accrued by lease",
            view=MARGINAL,
            stamp=stamp,
            columns=columns("lease", "accrued"),
            rows=tuple((lease_id, figure.text) for lease_id, figure in document.leases.items()),
        )


def roll_forward(document: ProvisionDocument) -> Table:
    """What was provided for at the begin and end of each day, and what moved it."""
    return Table(
        title="Roll-forward by UTC day",
        view=MARGINAL,
        stamp=document.head.stamp,
        columns=columns("day", "opening", "accrued", "realised", "released", "closing", "rates of", text=("rates of",)),
        rows=tuple(
            (
                day.day,
                day.opening.short_text,
                day.accrued.short_text,
                day.realised.short_text,
                day.released.short_text,
                day.closing.short_text,
                day.rates_of,
            )
            for day in document.days
        ),
        notes=("Opening + accrued - realised - released = closing. A day's provision is held to the end of the next.",),
    )


def rates(document: ProvisionDocument) -> Table:
    """How often a burst follows at each load, and what to provide for it."""
    rows = []
    for load_bin, rate in document.rates.items():
        pooled = f" ({' and '.join(rate.pooled)} of all)" if rate.pooled else ""
        rows.append(
            (
                f"{load_bin * 20} to {load_bin * 20 + 20}%",
                rate.windows.text,
                rate.bursts.text,
                rate.hazard_per_hour.short_text,
                rate.extra_misses.short_text,
                rate.extra_misses.short_interval,
                rate.provision_per_device_hour.short_text + pooled,
            )
        )
    misses = [rate.extra_misses for rate in document.rates.values()]
    reasons = dict.fromkeys(figure.text for figure in misses if figure.value is None)
    return Table(
        title="Bursts, by fifth of serving load",
        view=MARGINAL,
        stamp=document.head.stamp,
        columns=columns("load", "windows", "bursts", "an hour", "extra misses each", _INTERVAL, "per lent device-hour"),
        rows=tuple(rows),
        notes=notes(
            f"Windows of {document.horizon.text}; a burst is a rise into the top fifth.",
            _penalty(document.penalty),
            "; ".join(reasons),
            why_no_interval(misses),
        ),
    )


def rests_on(document: ProvisionDocument) -> str:
    """What the figure of what was realised rests on; empty where the figure itself says it."""
    return "" if document.rests_on == document.realised.text else document.rests_on


def _penalty(penalty: Figure) -> str:
    if penalty.value is None:
        return f"What a missed budget costs is {penalty.text}."
    return f"A missed budget costs {penalty.text} (price book)."


def compare(document: CompareDocument) -> Iterator[Element]:
    """What `rose borrow compare` shows."""
    stamp, ways = document.head.stamp, document.ways
    yield heading(document.head.run, stamp)
    title = f"The same {document.tokens.text} useful tokens otherwise"
    yield Table(
        title=f"{title}: on the bill",
        view=MARGINAL,
        stamp=stamp,
        columns=columns("way", "added to the bill", "cash saved", _INTERVAL),
        rows=tuple(
            (name, way.added.marked_text, way.cash_saved.text, way.cash_saved.short_interval)
            for name, way in ways.items()
            if name != LOADED
        ),
        footer=(("borrowed", document.charged.marked_text, "", ""),),
        notes=notes(document.condition, why_no_interval(way.cash_saved for way in ways.values())),
    )
    yield Table(
        title=f"{title}: device time",
        view="amortized; hypothetical but for what was borrowed",
        stamp=stamp,
        columns=columns("way", "cost", "per million", "less by borrowing", _INTERVAL),
        rows=tuple(
            (name, way.cost.marked_text, way.per_million.text, way.less.text, way.less.short_interval)
            for name, way in ways.items()
            if name != NOTHING
        ),
        footer=(("borrowed", document.borrowed_cost.text, document.borrowed_per_million.text, "", ""),),
        notes=notes(
            "The first row is the capacity avoided; it is no saving.",
            why_no_interval(way.less for way in ways.values()),
        ),
    )
    yield Table(
        title="How each was worked out",
        view="both views",
        stamp=stamp,
        columns=columns("way", "how", text=("how",)),
        rows=tuple((name, way.explained) for name, way in ways.items()),
    )
    if document.flips:
        yield flips(document)
    yield Paragraph.of_lines(document.says)


def flips(document: CompareDocument) -> Table:
    """What each price would have to be for borrowing to add as much to the bill as dedicated devices."""
    return Table(
        title="Where borrowing stops paying: break-even against cash",
        view=MARGINAL,
        stamp=document.head.stamp,
        columns=columns("what", "now", "stops paying at"),
        rows=tuple(
            (f"{BREAK_EVEN_CASH}, a device-hour" if name == PROVISION else name, flip.now.text, flip.flips_at.text)
            for name, flip in document.flips.items()
        ),
        notes=(
            "Each moved alone until cash saved is nothing. Device time that would not have been bought otherwise is "
            f"nothing here; in the {BREAK_EVEN_TIME} of `rose borrow provision` it has its amortized price.",
        ),
    )


def risk(document: RiskDocument) -> Iterator[Element]:
    """What `rose borrow risk` shows: both answers, and what cash saved depends on."""
    yield heading(document.head.run, document.head.stamp)
    yield Paragraph(f"{document.harm.says}\n{document.compare.in_short}")
    if document.swings:
        yield depends(document)


def depends(document: RiskDocument) -> Table:
    """What cash saved would be with one thing at either end of its range, the one that moves it furthest first."""
    terms = document.price.terms
    unknown = [_plain(name) for name, term in terms.items() if term.in_all.value is None]
    assumed = [_plain(name) for name, term in terms.items() if term.in_all.no_interval]
    return Table(
        title="What cash saved depends on",
        view=MARGINAL,
        stamp=document.head.stamp,
        columns=columns("what", "at its worse end", "as it is", "at its better end"),
        rows=tuple(
            (_plain(name), swing.worse.text, document.cash_saved.text, swing.better.text)
            for name, swing in document.swings.items()
        ),
        notes=notes(
            "Against dedicated devices, each moved alone. Ranges: 95% intervals, and those of the price book.",
            f"As it is {WOULD}." if document.compare.savings.cash_saved_if else "",
            f"Not known, so not in it: {', '.join(unknown)}." if unknown else "",
            f"Assumed, without a range: {', '.join(assumed)}." if assumed else "",
        ),
    )


def spikes(document: SpikesDocument) -> Iterator[Element]:
    """What `rose borrow spikes` shows."""
    yield heading(document.head.run, document.head.stamp)
    if not document.by_r:
        yield Paragraph(document.says)
        return
    yield paired(document)


def paired(document: SpikesDocument) -> Table:
    """What borrowing would cost at each correlation of load and demand."""
    return Table(
        title="If serving load and rollout demand rose together",
        view=MARGINAL,
        stamp=document.windows.stamp,
        columns=columns("r", "fits", "wasted", "per million tokens", "per M answer tokens (C3)", "dearest 1%, an hour"),
        rows=tuple(
            (r, row.attainment.text, row.wasted_share.text, row.token_cost.text, row.c3.text, row.tail.text)
            for r, row in document.by_r.items()
        ),
        notes=(
            f"Simulated: {document.windows.text} windows of {document.window.text}, paired anew (r as observed: "
            f"{document.observed_r.text}). A million tokens on dedicated devices: {document.dedicated.text}. "
            f"r*: {document.says}.",
            *(() if document.penalty.value else (f"Late requests are in it at nothing. {_penalty(document.penalty)}",)),
        ),
    )


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _kwh(figure: Figure) -> str:
    assert figure.value is not None
    return f"{figure.value / 3.6e18:,.6g} kWh"


def _watts(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "-"
    return f"{figure.low:+.1f} to {figure.high:+.1f} W"
