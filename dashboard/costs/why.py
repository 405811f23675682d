"""Why borrowed rollouts cost what they cost: the waterfall from dedicated devices to the marginal cost."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import streamlit as st

from dashboard import amounts, charts, display, escape, frame
from dashboard import format as words
from dashboard.data import Run
from rose.pricing.borrowing.report.waterfall import TOKENS
from rose.pricing.figures import Stamp
from rose.pricing.table import Section

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


def show(made: Section, stamp: Stamp, run: Run) -> None:
    """The section, of one run: amounts for a million useful tokens, and those of the run in the table."""
    name = f"**{escape.markdown(run.name)}** ({escape.markdown(run.run_id)})"
    if "missing" in made.parts:
        st.info(f"Run {escape.markdown(run.name)} cannot be compared: {escape.prose(made.text('missing'))}.")
        return
    st.markdown(words.plain(_sentence(made, name)))
    steps, tokens = rows(made), made.figure("tokens", TOKENS)
    title = f"{stamp.currency} for a million useful tokens made on borrowed devices"
    least = pl.col("nano").abs().max() / _DRAWN
    drawn = steps.filter((pl.col("nano").abs() > least).fill_null(True))
    display.chart(charts.waterfall(drawn, title), about="From dedicated devices to the marginal cost")
    table = steps.select(
        pl.col("name").alias("step"), (pl.col("nano") / 1e9).alias("run"), "per million", "view", "basis", "why"
    )
    display.table(
        table,
        placeholder="unknown",
        column_config={
            "run": amounts.column("of the run", table["run"], stamp.currency),
            "per million": amounts.column("a million useful tokens", table["per million"], stamp.currency),
        },
    )
    st.caption(
        words.plain(
            f"Steps add up to each sum so far, to the nano-dollar; those of next to nothing are in the "
            f"table alone. {stamp}, {tokens.text} useful tokens. "
            f"Source: `device_slice`, `turn`, `verdict`, `lease`, `sync`, `power` and the price book. {_SAVED}"
        )
    )
    frame.download(steps.select("name", "nano", "view", "basis", "why").rename({"nano": "nano-dollars"}), "waterfall")
    if "unknown" in made.parts:
        unknown = "\n".join(f"- {escape.prose(line)}" for line in made.parts["unknown"].to_json())
        st.markdown(words.plain(f"**Not known, and so in no sum:**\n\n{unknown}"))
    if "loaded" in made.parts:
        st.markdown(words.plain(escape.prose(made.text("loaded"))))


def rows(made: Section) -> pl.DataFrame:
    """Steps with where their bars begin and end, `per million` useful tokens, in the currency's units.

    Columns: name, nano, per million, from, to, right (the bar's right end), kind, text, view, basis, why.
    """
    table, tokens = made.table("steps"), made.figure("tokens", TOKENS).value or 0
    so_far, listed = Fraction(0), []
    for number, (name, figure, why) in enumerate(table.rows):
        whole = number in table.marks
        nano = None if figure.value is None else Fraction(figure.value * _MILLION, int(tokens))
        begin = Fraction(0) if whole else so_far
        so_far = begin + (nano or 0)
        ends = [float(end) / 1e9 for end in (begin, so_far)]
        kind, text = charts.UNKNOWN, charts.UNKNOWN
        if nano is not None:
            kind = charts.WHOLE if whole else charts.MORE if nano > 0 else charts.LESS
            text = ("" if kind != charts.MORE else "+") + amounts.amount(nano)
        listed.append(
            {
                "name": _LABELS.get(name, name),
                "nano": figure.value,
                "per million": None if nano is None else float(nano) / 1e9,
                "from": ends[0],
                "to": ends[1],
                "right": max(ends),
                "kind": kind,
                "text": text,
                "view": figure.view,
                "basis": figure.basis,
                "why": escape.cell(why),
            }
        )
    schema = {"nano": pl.Int64, "per million": pl.Float64}
    return pl.DataFrame(listed, schema_overrides=schema)


def _sentence(made: Section, name: str) -> str:
    steps, tokens = made.table("steps").rows, int(made.figure("tokens", TOKENS).value or 0)
    first, last = steps[0][1], steps[-1][1]
    dedicated, borrowed = (amounts.amount(Fraction(end.value * _MILLION, tokens)) for end in (first, last))
    why = (
        "the device is paid for anyway, so only what lending adds is left"
        if last.value < first.value
        else "what lending adds comes to more than the device time that it stands in for"
    )
    hypothetical = " (assumed)" if first.basis == "assumed" else ""
    return (
        f"In run {name} a million useful tokens would cost **{dedicated}** on dedicated devices{hypothetical}, and "
        f"borrowing them added **{borrowed}** to the bill: {why}. The first is a price that nobody was "
        "billed for, the last a figure for deciding: neither is a part of the bill."
    )
