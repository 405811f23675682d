"""Why borrowed rollouts cost what they cost: the waterfall from dedicated devices to the marginal cost."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import amounts, charts, data, display, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from rose.pricing.borrowing.report import waterfall
from rose.pricing.borrowing.report.waterfall import Part, Waterfall

_MILLION = 10**6
#: A step is drawn from this part of the largest on.
_DRAWN = 10_000
#: Steps as readers call them; others are called as pricing calls them.
_LABELS = {
    "energy": "more energy",
    "transfer": "weight transfer",
    "scheduler": "scheduling",
    "kv_recompute": "prompts computed again",
    "provision": "late requests",
    "prefix_cache": "serving's prefix cache",
    "interference": "serving slowed down",
    "held_memory": "memory held for lending",
    "publishing": "publishing weights",
}
_SAVED = "The page Risk has what borrowing saved, with its interval and against other offers."


def ask(ledger: Path, run: Run, *, unverified: bool = False) -> Priced[Waterfall]:
    """The waterfall of a run at its price book's prices, or why there is none."""
    return data.document(ledger, run, waterfall.build, unverified=unverified)


def show(made: Waterfall, run: Run) -> None:
    """The section, of one run: amounts for a million useful tokens, and those of the run in the table."""
    name = f"**{escape.markdown(run.name)}** ({escape.markdown(run.run_id)})"
    if made.missing is not None:
        st.info(f"Run {escape.markdown(run.name)} cannot be compared: {escape.prose(made.missing)}.")
        return
    st.markdown(words.plain(_sentence(made, name)))
    steps = rows(made)
    title = f"{made.head.stamp.currency} for a million useful tokens made on borrowed devices"
    least = pl.col("nano").abs().max() / _DRAWN
    drawn = steps.filter((pl.col("nano").abs() > least).fill_null(True))
    display.chart(charts.waterfall(drawn, title), about="From dedicated devices to the marginal cost")
    table = steps.select(
        pl.col("name").alias("step"), (pl.col("nano") / 1e9).alias("run"), "per million", "view", "basis", "why"
    )
    currency = made.head.stamp.currency
    display.table(
        table,
        placeholder="unknown",
        column_config={
            "run": amounts.column("of the run", table["run"], currency),
            "per million": amounts.column("a million useful tokens", table["per million"], currency),
        },
    )
    st.caption(
        words.plain(
            f"Steps add up to each sum so far, to the nano-dollar; those of next to nothing are in the "
            f"table alone. {made.head.stamp}, {made.tokens:,} useful tokens. "
            f"Source: `device_slice`, `turn`, `verdict`, `lease`, `sync`, `power` and the price book. {_SAVED}"
        )
    )
    frame.download(steps.select("name", "nano", "view", "basis", "why").rename({"nano": "nano-dollars"}), "waterfall")
    if made.unknown:
        unknown = "\n".join(f"- {escape.prose(line)}" for line in made.unknown)
        st.markdown(words.plain(f"**Not known, and so in no sum:**\n\n{unknown}"))
    if made.loaded:
        st.markdown(words.plain(escape.prose(made.loaded_says)))


def rows(made: Waterfall) -> pl.DataFrame:
    """Steps with where their bars begin and end, `per million` useful tokens, in the currency's units.

    Columns: name, nano, per million, from, to, right (the bar's right end), kind, text, view, basis, why.
    """
    so_far, listed = 0, []
    for part in made.parts:
        begin = 0 if part.whole else so_far
        end = begin + (part.nano or 0)
        so_far = end
        ends = [_per_million(nano, made.tokens) for nano in (begin, end)]
        listed.append(
            {
                "name": _LABELS.get(part.name, part.name),
                "nano": part.nano,
                "per million": None if part.nano is None else _per_million(part.nano, made.tokens),
                "from": ends[0],
                "to": ends[1],
                "right": max(ends),
                "kind": _kind(part),
                "text": _text(part, made.tokens),
                "view": part.view,
                "basis": part.basis,
                "why": escape.cell(part.why),
            }
        )
    schema = {"nano": pl.Int64, "per million": pl.Float64}
    return pl.DataFrame(listed, schema_overrides=schema)


def _kind(part: Part) -> str:
    if part.nano is None:
        return charts.UNKNOWN
    return charts.WHOLE if part.whole else charts.MORE if part.nano > 0 else charts.LESS


def _text(part: Part, tokens: int) -> str:
    if part.nano is None:
        return charts.UNKNOWN
    text = amounts.amount(Fraction(part.nano * _MILLION, tokens))
    return text if part.whole or part.nano <= 0 else f"+{text}"


def _per_million(nano: int, tokens: int) -> float:
    return float(Fraction(nano * _MILLION, tokens)) / 1e9


def _sentence(made: Waterfall, name: str) -> str:
    first, last = made.parts[0], made.parts[-1]
    dedicated, borrowed = (amounts.amount(Fraction((part.nano or 0) * _MILLION, made.tokens)) for part in (first, last))
    cheaper = (last.nano or 0) < (first.nano or 0)
    why = (
        "the device is paid for anyway, so only what lending adds is left"
        if cheaper
        else "what lending adds comes to more than the device time that it stands in for"
    )
    hypothetical = " (assumed)" if first.basis == "assumed" else ""
    return (
        f"In run {name} a million useful tokens would cost **{dedicated}** on dedicated devices{hypothetical}, and "
        f"borrowing them added **{borrowed}** to the bill: {why}. The first is a price that nobody was "
        "billed for, the last a figure for deciding: neither is a part of the bill."
    )
