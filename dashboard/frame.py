"""What every page stands in: the choice of a run, provenance, live refresh, errors as messages, figures and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import polars as pl
import streamlit as st

from dashboard import data
from dashboard import format as words
from dashboard.data import Priced, Run
from rose.errors import UserError
from rose.ledger import verified
from rose.pricing.closing.period import Period
from rose.pricing.document import Report
from rose.pricing.figures import EXAMPLE_PRICES, BookFacts, Figure, Stamp
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.table import Table

T = TypeVar("T")
Show = Callable[[Path, Run], None]
ShowAll = Callable[[Path, list[Run]], None]

#: How often a page looks for news, in seconds: of a run that goes on, and where none is expected soon.
LIVE_S, QUIET_S = 3.0, 30.0
#: Tables of so many rows are shown whole; longer ones scroll.
_ROWS_SHOWN = 30
_CHOSEN = "run"
_BADGES: dict[str, Literal["green", "violet", "orange"]] = {"live": "green", "replay": "violet", "simulated": "orange"}


def sidebar() -> None:
    """Choose a run, newest first; its provenance stands beside it."""
    st.sidebar.markdown("### ROSE\nRollouts on borrowed serving devices, and what they cost.")
    try:
        ledger = data.root()
        runs = {run.run_id: run for run in data.runs(ledger)}
    except UserError:
        return  # the page itself says what is wrong
    if runs:
        run_id = st.sidebar.selectbox("Run", list(runs), format_func=lambda key: _label(runs[key]), key=_CHOSEN)
        run = runs[run_id]
        with st.sidebar:
            _badge(run)
            st.caption(f"`{run.run_id}`, {run.status}, started {words.when(run.started_at)}")
            chosen = data.price_book(ledger, run).value
            st.caption(words.plain("No price book" if chosen is None else BookFacts.from_book(chosen).line))
    st.sidebar.caption(f"Ledger `{ledger.name}`, {verified.text(ledger)}")


def _label(run: Run) -> str:
    return run.name if run.started_at is None else f"{run.name}, {run.started_at:%Y-%m-%d %H:%M}"


def _badge(run: Run) -> None:
    for provenance in run.provenances:
        st.badge(
            provenance.upper(), color=_BADGES.get(provenance, "orange"), help=words.PROVENANCE_WORDS.get(provenance)
        )


def page(title: str, asks: str, show: Show, *, live_s: float = LIVE_S) -> None:
    """A page on one run: its heading, then `show`, again every `live_s` seconds while the run goes on."""
    opened = _opened(title, asks)
    if opened is None:
        return
    ledger, runs = opened
    chosen = st.session_state.get(_CHOSEN)
    run = next((run for run in runs if run.run_id == chosen), runs[0])

    def body() -> None:
        now = next((other for other in data.runs(ledger) if other.run_id == run.run_id), run)
        if now.status != run.status:
            st.rerun()
        _status(ledger, now)
        if len(now.provenances) > 1:
            mix = " and ".join(now.provenances)
            st.error(f"This run mixes events of different provenance ({mix}): no figure may be made of both.")
        else:
            show(ledger, now)

    _follow(body, _every(ledger, [run], live_s))


def ledger_page(title: str, asks: str, show: ShowAll) -> None:
    """A page on all runs of the ledger, whichever is chosen: its heading, then `show`, again while a run goes on."""
    opened = _opened(title, asks)
    if opened is not None:
        ledger, runs = opened
        st.caption("All runs of the ledger, not only the one that is chosen at the left.")
        _follow(lambda: show(ledger, data.runs(ledger)), _every(ledger, runs, QUIET_S))


def _opened(title: str, asks: str) -> tuple[Path, list[Run]] | None:
    """The heading; then the ledger and its runs, or a message."""
    st.title(title)
    st.markdown(asks)
    try:
        ledger = data.root()
        runs = data.runs(ledger)
    except UserError as error:
        st.error(words.plain(str(error)))
        return None
    if not runs:
        _wait_for_a_run(ledger)
        return None
    return ledger, runs


def _every(ledger: Path, runs: list[Run], live_s: float) -> float | None:
    if not any(run.status == "running" for run in runs):
        return None
    return live_s if data.quiet_s(ledger) < data.QUIET_S else QUIET_S


def _follow(body: Callable[[], None], every: float | None) -> None:
    """The fragment alone runs again: the page around it stays, and its elements change in place."""

    @st.fragment(run_every=every)
    def fragment() -> None:
        try:
            body()
        except UserError as error:
            st.error(words.plain(str(error)))

    fragment()


def _wait_for_a_run(ledger: Path) -> None:
    @st.fragment(run_every=LIVE_S)
    def wait() -> None:
        try:
            if data.runs(ledger):
                st.rerun()
        except UserError as error:
            st.error(words.plain(str(error)))
            return
        st.info("This ledger holds no run yet. `rose demo` or `rose up` writes one; it will appear here by itself.")

    wait()


def _status(ledger: Path, run: Run) -> None:
    """Which run, how it stands, and, for what was not measured, a banner that says so."""
    name = f"**{run.name}** (`{run.run_id}`)"
    if run.status == "running":
        quiet_s = data.quiet_s(ledger)
        if quiet_s < data.QUIET_S:
            st.markdown(f"Run {name}, going on. Last event {words.when(run.last_event_at)}. This page follows it.")
        else:
            st.markdown(f"Run {name} has no end in the ledger. Last event {words.when(run.last_event_at)}.")
            st.warning(
                f"Nothing was written for {words.duration(quiet_s)}: the run was probably killed. "
                "Figures are as of its last event."
            )
    else:
        why = f" ({run.reason})" if run.reason else ""
        st.markdown(f"Run {name}, {run.status}{why}, {words.when(run.ended_at)}.")
    for provenance in run.provenances:
        banner(provenance)


def banner(provenance: str) -> None:
    """Says of what was not measured that it was not."""
    if provenance != "live":
        st.warning(f"**{provenance.upper()}.** {words.PROVENANCE_WORDS.get(provenance, '')}")


def priced(ledger: Path, run: Run) -> Report | None:
    """The run's cost report, or a message."""
    return asked(ledger, lambda unverified: data.price(ledger, run, unverified=unverified), run.run_id)


def asked(ledger: Path, ask: Callable[[bool], Priced[T]], key: str) -> T | None:
    """What `ask` gives; of a ledger that does not verify only at the reader's explicit wish, and marked.

    `ask` is told whether an unverified ledger will do; `key` tells the wish apart from others.
    """
    answer = ask(False)
    if answer.value is not None:
        return answer.value
    st.error(words.plain(answer.error or words.NOT_ENOUGH_DATA))
    if data.verifies(ledger) or not st.checkbox("Show figures that are not verified", key=f"unverified-{key}"):
        return None
    answer = ask(True)
    if answer.value is None:
        st.error(words.plain(answer.error or words.NOT_ENOUGH_DATA))
    else:
        st.warning("**UNVERIFIED LEDGER.** Do not rely on the figures below.")
    return answer.value


def book(ledger: Path, period: Period) -> PriceBook | None:
    """The price book of a page on a period, or a message."""
    chosen = data.price_book(ledger, period=period)
    if chosen.value is None:
        st.error(words.plain(chosen.error or words.NOT_ENOUGH_DATA))
    return chosen.value


def stamp(stamped: Stamp, prices: str | None = None) -> None:
    """What all figures below share; made-up prices get a banner. `prices`: more than the stamp knows of them."""
    if stamped.book.example:
        st.warning(
            f"**{EXAMPLE_PRICES}.** The price book {stamped.book.text} is made up: no figure below is your cost."
        )
    st.caption(words.plain(words.stamp(stamped, prices)))


def provenance(present: list[str], key: str) -> str | None:
    """The one provenance of a period, or, of several, the one that is chosen; None until one is."""
    if len(present) == 1:
        return present[0]
    st.error(f"This period has runs of different provenance ({' and '.join(present)}): no figure may be made of both.")
    return st.radio("Show", present, index=None, horizontal=True, key=f"{key}-provenance")


def metric(label: str, figure: Figure, explained: str) -> None:
    """One figure: its value, then its view, unit and what it rests on, then one line of what it means."""
    st.metric(label, words.short(figure))
    st.caption(f"{words.plain(words.terms(figure))}  \n{words.plain(explained)}")


def metrics(*cards: tuple[str, Figure, str]) -> None:
    """Figures side by side: label, figure, and what it means."""
    for column, (label, figure, explained) in zip(st.columns(len(cards)), cards, strict=True):
        with column:
            metric(label, figure, explained)


def show_table(made: Table, source: str) -> None:
    """A table of pricing: its rows and totals as text, and below them where they come from and what they say."""
    rows = [made.row_text(row) for row in (*made.rows, *made.footer)]
    shown = pl.DataFrame(rows, schema={column.name: pl.String for column in made.columns}, orient="row")
    table(shown, " ".join((f"{source}; {made.terms}.", *made.notes)))


def table(frame: pl.DataFrame, source: str) -> None:
    """A table with the view it comes from below."""
    shown = frame.rename(lambda column: column.replace("_", " "))
    # A sum at the end must not lie out of sight.
    height: Literal["content", "auto"] = "content" if shown.height <= _ROWS_SHOWN else "auto"
    st.dataframe(shown, hide_index=True, width="stretch", height=height, placeholder="")
    st.caption(words.plain(f"Source: {source}"))
