"""The documents on borrowing as tables for a terminal, each titled with its view, currency and provenance."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rich import box
from rich.console import JustifyMethod, RenderableType
from rich.table import Table

from rose.clock import utc
from rose.pricing.borrowing.marginal import TERMS
from rose.pricing.borrowing.report.alternatives import CompareDocument
from rose.pricing.borrowing.report.common import Head
from rose.pricing.borrowing.report.marginal import PriceDocument
from rose.pricing.borrowing.report.provision import ProvisionDocument
from rose.pricing.borrowing.report.spikes import SpikesDocument
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.figures import MARGINAL, Figure, why_no_interval
from rose.pricing.run.tables import WIDTH

_PROSE = ("rests on", "how", "rates of", "what")
_INTERVAL = "95% interval"


def price(document: PriceDocument) -> Iterable[RenderableType]:
    """What `rose borrow price` prints."""
    yield _heading(document.head)
    table = _table(document.head, "What borrowing added to the bill (m)", MARGINAL, "term", "in all", _INTERVAL,
                   "per device-hour", "rests on")  # fmt: skip
    for name, row in document.terms.items():
        basis = row.in_all.basis
        told = row.rests_on if basis in row.rests_on else f"{basis}: {row.rests_on}"
        table.add_row(_plain(name), row.in_all.text, _span(row.in_all), row.per_device_hour.text, told)
    table.add_section()
    total = document.total
    told = f"{document.borrowed.text} borrowed" + (f"; {total.rests_on}" if total.rests_on else "")
    table.add_row("m", total.in_all.text, _span(total.in_all), total.per_device_hour.text, told, style="bold")
    if document.avoidable.value:
        at = f"amortized; {document.gave_back.text} in spans given" if document.gave_back.value else "amortized"
        table.add_row("avoidable device time", document.avoidable.text, "-", "-", at)
        table.add_row("charged", document.charged.text, "-", "-", "m and the avoidable device time", style="bold")
    totals = [row.in_all for row in document.terms.values()]
    table.caption = " ".join(filter(None, (document.gate, why_no_interval(totals))))
    yield table
    if document.metered:
        meters = _table(document.head, "Power meters", "counts", "class", "extra power while lent", _INTERVAL,
                        "metered", "anyway", "extra")  # fmt: skip
        for name, meter in document.metered.items():
            energies = (_kwh(figure) for figure in (meter.metered, meter.baseline, meter.extra))
            meters.add_row(name, f"{meter.extra_power.value:+.1f} W", _watts(meter.extra_power), *energies)
        yield meters
    if document.leases:
        yield _leases(document)


def _leases(document: PriceDocument) -> Table:
    terms = [name for name in TERMS if any(lease.terms[name].value for lease in document.leases)]
    table = _table(document.head, "By lease", MARGINAL, "lease", "borrowed", *map(_plain, terms), "m", "avoidable")
    prefix = f"{document.head.run.run_id}-"
    for lease in document.leases:
        table.add_row(
            (lease.lease_id or "no lease").removeprefix(prefix), lease.borrowed.text,
            *(lease.terms[name].text for name in terms), lease.total.text, lease.avoidable.text,
        )  # fmt: skip
    table.caption = "Each column sums to the run's figure, to the nano-dollar; a term that is 0 for all is left out."
    return table


def provision(document: ProvisionDocument) -> Iterable[RenderableType]:
    """What `rose borrow provision` prints."""
    yield _heading(document.head)
    rates = _table(document.head, "Bursts, by fifth of serving load", MARGINAL, "load", "windows", "bursts", "an hour",
                   "extra misses each", _INTERVAL, "per lent device-hour")  # fmt: skip
    for load_bin, row in document.rates.items():
        pooled = f" ({' and '.join(row.pooled)} of all)" if row.pooled else ""
        rates.add_row(
            f"{load_bin * 20} to {load_bin * 20 + 20}%", row.windows.text, row.bursts.text, _brief(row.hazard_per_hour),
            _brief(row.extra_misses), _span(row.extra_misses), _brief(row.provision_per_device_hour) + pooled,
        )  # fmt: skip
    reasons = dict.fromkeys(row.extra_misses.text for row in document.rates.values() if row.extra_misses.value is None)
    rates.caption = (
        f"Windows of {document.horizon.text}; a burst is a rise into the top fifth. A missed budget costs "
        f"{document.penalty.text} (price book). {'; '.join(reasons)}"
        f"{why_no_interval(row.extra_misses for row in document.rates.values())}"
    )
    yield rates
    totals = _table(
        document.head, "Provided for, and what it came to", MARGINAL, "what", "in all", _INTERVAL, "rests on"
    )
    totals.add_row("accrued", document.accrued.text, "-", "rates known when each day began, times lent time")
    totals.add_row("realised", document.realised.text, _span(document.realised), document.rests_on)
    hourly = document.realised_per_device_hour
    totals.add_row("realised per borrowed device-hour", hourly.text, _span(hourly), "")
    totals.add_row(
        "break-even per borrowed device-hour", document.break_even.text, "-", "borrowing stops paying above it"
    )
    notes = [why_no_interval([document.realised])]
    if document.not_provided_for.value:
        notes.append(f"Nothing is provided for {document.not_provided_for.text} lent at a load that is not known.")
    totals.caption = " ".join(filter(None, notes))
    yield totals
    columns = ("day", "opening", "accrued", "realised", "released", "closing", "rates of")
    days = _table(document.head, "Roll-forward by UTC day", MARGINAL, *columns)
    for day in document.days:
        moves = (day.opening, day.accrued, day.realised, day.released, day.closing)
        days.add_row(day.day, *map(_brief, moves), day.rates_of)
    days.caption = (
        "Opening + accrued - realised - released = closing. A day's provision is held to the end of the next."
    )
    yield days
    if document.leases:
        leases = _table(document.head, "Accrued by lease", MARGINAL, "lease", "accrued")
        for lease_id, figure in document.leases.items():
            leases.add_row(lease_id, figure.text)
        yield leases


def compare(document: CompareDocument) -> Iterable[RenderableType]:
    """What `rose borrow compare` prints."""
    yield _heading(document.head)
    title = f"The same {document.tokens.text} useful tokens otherwise"
    bill = _table(document.head, f"{title}: on the bill", MARGINAL, "way", "added to the bill", "cash saved", _INTERVAL)
    table = _table(
        document.head, f"{title}: device time", "amortized; hypothetical but for what was borrowed", "way", "cost",
        "per million", "less by borrowing", _INTERVAL,
    )  # fmt: skip
    how = _table(document.head, "How each was worked out", "both views", "way", "how")
    for name, way in document.ways.items():
        if name != LOADED:
            bill.add_row(name, _shown(way.added), way.cash_saved.text, _span(way.cash_saved))
        if name != NOTHING:
            table.add_row(name, _shown(way.cost), way.per_million.text, way.less.text, _span(way.less))
        how.add_row(name, way.explained)
    bill.add_section()
    bill.add_row("borrowed", _shown(document.charged), "", "", style="bold")
    bill.caption = " ".join(
        filter(None, (document.condition, why_no_interval(way.cash_saved for way in document.ways.values())))
    )
    yield bill
    table.add_section()
    table.add_row("borrowed", document.borrowed_cost.text, document.borrowed_per_million.text, "", "", style="bold")
    notes = ["The first row is the capacity avoided; it is no saving."]
    notes.append(why_no_interval(way.less for way in document.ways.values()))
    table.caption = " ".join(filter(None, notes))
    yield table
    yield how
    if document.flips:
        flips = _table(document.head, "Where borrowing stops paying", MARGINAL, "what", "now", "flips at")
        for name, flip in document.flips.items():
            flips.add_row(name, flip.now.text, flip.flips_at.text)
        yield flips
    yield "\n".join(document.says)


def spikes(document: SpikesDocument) -> Iterable[RenderableType]:
    """What `rose borrow spikes` prints."""
    yield _heading(document.head)
    simulated = dataclasses.replace(document.head, stamp=document.windows.stamp)
    table = _table(simulated, "If serving load and rollout demand rose together", MARGINAL, "r", "fits", "wasted",
                   "per million tokens", "per M answer tokens (C3)", "dearest 1%, an hour")  # fmt: skip
    for r, row in document.by_r.items():
        shown = (row.attainment, row.wasted_share, row.token_cost, row.c3, row.tail)
        table.add_row(r, *(figure.text for figure in shown))
    if not document.by_r:
        yield document.says
        return
    table.caption = (
        f"Simulated: {document.windows.text} windows of {document.window.text}, paired anew (r as observed: "
        f"{document.observed_r.text}). A million tokens on dedicated devices: {document.dedicated.text}. "
        f"r*: {document.says}."
    )
    yield table


def _heading(head: Head) -> str:
    run, stamp = head.run, head.stamp
    return (
        f"[bold]Run {run.name}[/bold] ({run.run_id}), {run.status}, {stamp.provenance}\n"
        f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}\n"
        f"{stamp.book.line}"
    )


def _table(head: Head, title: str, view: str, *columns: str) -> Table:
    table = Table(
        title=f"{title}  [{view}; {head.stamp}]".replace("[", "\\["),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        width=WIDTH,
    )
    for index, column in enumerate(columns):
        prose = column in _PROSE and index
        justify: JustifyMethod = "left" if index == 0 or prose else "right"
        table.add_column(column, justify=justify, overflow="fold", min_width=28 if prose else None)
    return table


def _shown(figure: Figure) -> str:
    return figure.text + (" (assumed)" if figure.value is not None and figure.basis == "assumed" else "")


def _brief(figure: Figure) -> str:
    """Without the reason, which the table's caption gives once."""
    return "-" if figure.value is None else figure.text


def _span(figure: Figure) -> str:
    return figure.interval_text or "-"


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _kwh(figure: Figure) -> str:
    assert figure.value is not None
    return f"{figure.value / 3.6e18:,.6g} kWh"


def _watts(figure: Figure) -> str:
    if figure.low is None or figure.high is None:
        return "-"
    return f"{figure.low:+.1f} to {figure.high:+.1f} W"
