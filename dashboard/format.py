"""Writes times, shares and amounts as text."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

import polars as pl
import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from dashboard import escape
from dashboard.data import Run
from rose.pricing.money import format_usd
from rose.pricing.period import NS_PER_DAY, Period, day_of

PROVENANCE_WORDS: Mapping[str, str] = {
    "live": "Measured on running engines; a named trace means replayed traffic instead of users.",
    "replay": "The real policies on a fleet in virtual time, not a measurement of a running fleet.",
    "simulated": "These figures come from synthetic events, not from a running fleet.",
}
REASONS: Mapping[str, str] = {  # Of refusing a device to rollouts, or taking it back, by the ledger's name.
    "no_lease": "no lease was active",
    "serving_step": "serving was at work",
    "stretch": "live requests already took longer by as much as is allowed",
    "serving_memory": "serving may need the memory for its live requests",
    "interference": "serving's steps took longer than lending explains",
    "control": "serving measured a step without rollouts",
    "prefill_slack": "a first token would have been late",
    "decode_slack": "a further token would have been late",
    "next_request": "no room for the next request",
    "compute_share": "the lease's share of the device was used up",
    "kv_budget": "the lease's memory was used up",
    "regret": "serving was already delayed by as much as is allowed",
    "unknown_times": "step times were not yet known",
    "no_serving": "serving did not answer",
    "policy": "the policy refused",
    "withheld": "withheld at random to measure the cost of lending",
}
_TINY_NANO = 100_000
_DIGITS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def when(at: datetime | None) -> str:
    """Return a text such as `2026-01-31 09:30:00 UTC`."""
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def minute(at: datetime | None) -> str:
    """Return a text such as `2026-01-31 09:30`."""
    return "not begun" if at is None else f"{at:%Y-%m-%d %H:%M}"


def period(shown: Period) -> str:
    """Return a text such as `2026-11`, `2026-11-03` or `2026-11-03 to 2026-11-05`, which includes both days."""
    if shown.from_ns % NS_PER_DAY or shown.to_ns % NS_PER_DAY or "-to-" not in shown.label:
        return shown.label.replace("-to-", " to ")
    return f"{day_of(shown.from_ns)} to {day_of(shown.to_ns - 1)}"


def duration(seconds: float) -> str:
    """Return a text such as `45 s`, `12 min`, `3.5 h` or `2.1 days`."""
    for name, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {name}"
    return f"{seconds:.0f} s"


def withheld(ns: int) -> str:
    return f"Idle because the experiment withheld leases: {duration(ns / 1e9)}."


def milliseconds(value: float | None) -> str:
    """Return a text such as `450 ms` or `2.35 s`."""
    if value is None:
        return "unknown"
    return f"{value:,.3g} ms" if value < 1000 else f"{value / 1000:,.3g} s"


def percent(share: Fraction | None, digits: int = 1) -> str | None:
    """Return a text such as `41.2%`. The text is 100% or 0% only if the share is exactly 1 or 0."""
    if share is None:
        return None
    text = f"{float(share):.{digits}%}"
    whole, nothing = f"{1:.{digits}%}", f"{0:.{digits}%}"
    if (text == whole and share < 1) or (text == nothing and share > 0):
        return percent(share, digits + 1)
    return text


def change(now: int | Fraction | None, before: int | Fraction | None, name: str) -> str | None:
    """Return the change since the period `name`, such as `+12.3% on 2026-05`. Return None if unknown."""
    if now is None or not before:
        return None
    return f"{float(Fraction(now) / Fraction(before) - 1):+.1%} on {name}"


def points(now: Fraction | None, before: Fraction | None, name: str) -> str | None:
    """Return the change since the period `name`, such as `+1.2 points on 2026-05`. Return None if unknown."""
    return None if now is None or before is None else f"{float(now - before) * 100:+.1f} points on {name}"


def amount(nano: int | Fraction) -> str:
    """Return a text such as `$1,234.57`, `$0.00123` or `$4.57 x 10⁻⁷`, rounded from nano-dollars."""
    exact = Fraction(nano)
    if exact == 0 or abs(exact) >= _TINY_NANO:
        return format_usd(round(exact))
    size = Decimal(exact.numerator) / Decimal(exact.denominator) * Decimal("1e-9")
    mantissa, exponent = f"{abs(size):.2e}".split("e")
    return f"{'-' if exact < 0 else ''}${mantissa} x 10{str(int(exponent)).translate(_DIGITS)}"


def money_column(label: str, amounts: Iterable[float | None]) -> ColumnConfig:
    """Return a money format that shows the smallest amount with three significant digits."""
    places = _places(amounts)
    if places == 2:
        return st.column_config.NumberColumn(label, format="dollar")
    return st.column_config.NumberColumn(f"{label} (USD)", format=f"%.{places}f")


def column(values: pl.Series) -> ColumnConfig:
    """Return the format that fits a column's name and type. The smallest fraction has three significant digits."""
    if values.name.endswith("share"):
        return st.column_config.NumberColumn(format="%.2f%%")
    if values.dtype.is_integer():
        return st.column_config.NumberColumn(format="localized")
    places = _places(values)
    return st.column_config.NumberColumn(format="accounting" if places == 2 else f"%.{places}f")


def _places(values: Iterable[float | None]) -> int:
    sizes = [Decimal(abs(value)).adjusted() for value in values if value]
    return max(2, min(2 - min(sizes), 6 - max(sizes))) if sizes else 2


def plain(text: str) -> str:
    """Escape dollar signs, which would start a formula in Streamlit's Markdown."""
    return text.replace("\\$", "$").replace("$", "\\$")


def trace(run: Run) -> str:
    """Return the run's serving traffic and its scaling as Markdown."""
    if not run.trace:
        return "Serving traffic: requests of users; no trace is replayed."
    share = "unknown share" if run.trace_keep_share is None else f"{run.trace_keep_share:.1%}"
    scales = {
        "prompt lengths": run.trace_length_scale,
        "output lengths": run.trace_output_length_scale,
        "time between arrivals": run.trace_time_scale,
    }
    scaled = ", ".join(f"{name} x{scale:.3g}" for name, scale in scales.items() if scale is not None)
    return f"Serving traffic: trace {escape.markdown(run.trace)}, {share} of its requests, {scaled or 'unscaled'}."
