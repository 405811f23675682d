"""Words and numbers for people: times, shares, trace scales, and the report as rows for a spreadsheet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from dashboard import escape
from dashboard.data import Run
from rose.pricing.closing.period import NS_PER_DAY, Period, day_of
from rose.pricing.closing.records import BookStamp
from rose.pricing.document import Report
from rose.pricing.figures import NOT_SET, BookFacts, Figure, Stamp
from rose.pricing.price_books.pricebook import PriceBook

NOT_ENOUGH_DATA = "not enough data"

#: What each bucket is.
BUCKET_WORDS: Mapping[str, str] = {
    "serving": "Time a device answered requests: of users, or of a trace that stands in for them.",
    "rollout": "Time a device generated rollouts for reinforcement learning, borrowed or dedicated.",
    "train": "Time a device updated the policy.",
    "sync": "Time a device took in new weights.",
    "activation": "Time in which an engine for rollouts started, or its memory came to a device or left it.",
    "headroom": "Time that a rollout wanted, was held for serving's sake, and nobody worked in.",
    "idle": "Time in which a device did nothing, and nobody was held. On a serving device without a lease it could "
    "have been lent; in a lease it is leased, not used.",
    "unaccounted": "Provisioned time that no report of the device covers: it is paid for, and nobody knows for what.",
}
PROVENANCE_WORDS: Mapping[str, str] = {
    "live": "Measured on running engines; where a trace is named, replayed traffic stood in for users.",
    "replay": "The real policies against a fleet in virtual time, not a measurement of a running fleet.",
    "simulated": "These figures come from made-up events, not from a running fleet.",
}


def when(at: datetime | None) -> str:
    """`2026-01-31 09:30:00 UTC`."""
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def period(shown: Period) -> str:
    """`2026-11`, `2026-11-03`, or `2026-11-03 to 2026-11-05` with both days in it; hours where it is no whole days."""
    if shown.from_ns % NS_PER_DAY or shown.to_ns % NS_PER_DAY or "-to-" not in shown.label:
        return shown.label.replace("-to-", " to ")
    return f"{day_of(shown.from_ns)} to {day_of(shown.to_ns - 1)}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.5 h`, `2.1 days`."""
    for name, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {name}"
    return f"{seconds:.0f} s"


def seconds(ns: int) -> str:
    """Exact to the millisecond where that is not everything: `12.345 s`."""
    return f"{ns / 1e9:,.3f} s"


def share(part: int, whole: int) -> str:
    """`41.2%`; of nothing there is none."""
    return f"{part / whole:.1%}" if whole else NOT_ENOUGH_DATA


def short(figure: Figure) -> str:
    """The figure's value, or `not enough data`, `not set` or `does not apply`; the reason is for the line below."""
    if figure.value is not None:
        return figure.text
    kinds = (NOT_SET, "does not apply")
    return next((kind for kind in kinds if (figure.why or "").startswith(kind)), NOT_ENOUGH_DATA)


def unit(figure: Figure) -> str:
    """`USD/million tokens`: money is shown in the currency, not in its billionths."""
    return figure.unit.replace("nano_usd", figure.stamp.currency)


def terms(figure: Figure) -> str:
    """What must stand beside a figure: view, unit, what it rests on, and why there is none."""
    parts = [f"{figure.view} view" if figure.view != "count" else "", unit(figure), f"basis: {figure.basis}"]
    if figure.value is None:
        parts = [figure.why or NOT_ENOUGH_DATA]
    elif figure.interval_text:
        parts.append(f"95% interval {figure.interval_text}")
    elif figure.no_interval:
        parts.append(f"no interval: {figure.no_interval}")
    return " · ".join(part for part in parts if part)


def interval(figure: Figure) -> str:
    """The 95% interval, or why there is none."""
    return figure.interval_text or figure.no_interval or NOT_ENOUGH_DATA


def stamp(stamped: Stamp, prices: str | None = None) -> str:
    """What all figures of one answer share: currency, period, provenance, price book, or `prices` instead of it."""
    period = stamped.to_json()["period"]
    return (
        f"All amounts in {stamped.currency}. Period {period['from'][:19].replace('T', ' ')} to "
        f"{period['to'][:19].replace('T', ' ')} UTC. Provenance: {stamped.provenance}. "
        f"{escape.markdown(prices or stamped.book.line)}. "
        + ("Ledger verified." if stamped.verified else "**UNVERIFIED LEDGER: do not rely on these figures.**")
    )


def book(priced_by: BookFacts | BookStamp | PriceBook) -> str:
    """Name and version of a price book."""
    return f"{priced_by.name} {priced_by.version}"


def plain(text: str) -> str:
    """Markdown of ours with amounts in it: between two dollar signs Streamlit would set a formula."""
    return text.replace("\\$", "$").replace("$", "\\$")


def trace(run: Run) -> str:
    """The serving traffic and by how much it was changed to fit the host: no latency is shown without it."""
    if not run.trace:
        return "Serving traffic: no trace named."
    kept = "unknown share" if run.trace_keep_share is None else f"{run.trace_keep_share:.1%}"
    scales = {
        "prompt lengths": run.trace_length_scale,
        "output lengths": run.trace_output_length_scale,
        "time between arrivals": run.trace_time_scale,
    }
    words = ", ".join(f"{name} x{scale:.3g}" for name, scale in scales.items() if scale is not None)
    return f"Serving traffic: trace {escape.markdown(run.trace)}, {kept} of its requests kept, {words or 'unscaled'}."


def to_json(report: Report) -> str:
    """The report as a file for machines."""
    return json.dumps(report.to_json(), indent=2)
