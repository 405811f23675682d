"""What would make a correct answer cheaper: levers, the next dollar, and verifiers."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import amounts, display, escape, frame
from dashboard import charts as shared
from dashboard import format as words
from dashboard.answers import charts
from rose.pricing.figures import Figure
from rose.pricing.table import Section


def levers(cost: Section) -> None:
    """What each factor of C3 would save by a tenth, and how well it is known."""
    st.header("Which lever moves it most?")
    st.markdown(words.plain(escape.markdown(cost.text("says"))))
    if "levers" in cost.parts:
        table = cost.table("levers")
        saves: dict[str, Figure] = {row["lever"]: row["saves"] for row in table.records()}
        currency = next(iter(saves.values())).stamp.currency
        title = f"{currency} saved on a million answer tokens, at list price, by a tenth of each"
        shown = pl.DataFrame(
            [
                {
                    "lever": lever,
                    "saves": (figure.value or 0) / 1e9,
                    "text": amounts.amount(int(figure.value or 0), currency),
                }
                for lever, figure in saves.items()
            ]
        )
        display.chart(charts.levers(shown, title), about="What each lever saves")
        frame.show_table(table, "the formula's factors, each moved alone")
    with st.expander("What is the formula made of?"):
        st.markdown("C3 = CPM x R x (1 + pi x rho) / alpha, pi being the price of a rollout token over serving's own.")
        frame.show_table(cost.table("c3"), "`turn`, `trajectory`, `verdict` and the price book")


def frontier(ahead: Section) -> None:
    """Where the next dollar, or slack second, lowers cost per correct most."""
    st.header("Where does the next dollar belong?")
    answers = ahead.table("answers")
    for row in answers.records():
        name = str(row["priced by"])
        st.markdown(f"- **{escape.markdown(name[0].upper() + name[1:])}:** {escape.prose(row['answer'])}")
    st.markdown(escape.markdown(ahead.text("rollouts")))
    frame.show_table(answers, "a direction is named only where the interval allows no other")
    st.subheader("How accepted answers grow")
    frame.show_table(
        ahead.table("elasticities"),
        "`verdict`, `trajectory`, `step`. Elasticity: what 1% more rollouts, or training, bring in percent of alpha",
    )


def verifiers(made: Section) -> None:
    """Which verifier makes a correct answer cheapest."""
    st.header("Which verifier makes a correct answer cheapest?")
    if "missing" in made.parts:
        st.info(escape.prose(made.text("missing")))
        return
    st.markdown(words.plain(escape.markdown(made.text("says"))))
    costs = {row[0]: row[6] for row in made.table("cost").rows}
    known = {name: figure for name, figure in costs.items() if figure.value is not None}
    if known:
        count, named = amounts.scale(min((figure.value for figure in known.values() if figure.value), default=None))
        priced = f"{named or 'a '}correct answer{'s' if count > 1 else ''}"
        currency = next(iter(known.values())).stamp.currency
        shown = shared.interval_rows(known, count)
        title = f"{currency} for {priced}, 95% interval"
        display.chart(shared.intervals(shown, title), about="Cost of a correct answer by verifier")
    frame.show_table(made.table("cost"), "probes that all of them judged")
    with st.expander("How well does each report probabilities?"):
        frame.show_table(made.table("scores"), "the same probes")
        frame.show_table(made.table("calibration"), "the same probes")
