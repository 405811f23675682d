"""What every page stands in: bar and trust chip, provenance, live refresh, errors as messages, figures and tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import polars as pl
import streamlit as st

from dashboard import amounts, bar, books, data, display, drill, escape, trust
from dashboard import format as words
from dashboard.access import session
from dashboard.books import Asked
from dashboard.data import Priced, Run
from dashboard.trust import Trust
from rose.errors import UserError
from rose.pricing.closing.period import Period
from rose.pricing.figures import EXAMPLE_PRICES, Figure, Stamp
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.table import Table, cell_text

T = TypeVar("T")
Show = Callable[[Path, Run], None]
ShowAll = Callable[[Path, list[Run]], None]

#: How often a page looks for news, in seconds: of a run that goes on, and where none is expected soon.
LIVE_S, QUIET_S = 3.0, 30.0
#: Tables of so many rows are shown whole; longer ones scroll.
_ROWS_SHOWN = 30
_TRUST = "trust"


def page(title: str, asks: str, show: Show, *, live_s: float = LIVE_S, of_fleet: bool = True) -> None:
    """A page on one run: its heading, then `show`, again every `live_s` seconds while the run goes on.

    Where none is chosen it is on the newest run `of_fleet`, which has all that RL runs share, or on the newest of all.
    """
    with _opened(title, asks, uses=("run",)) as opened:
        if opened is None:
            return
        ledger, runs = opened
        chosen = bar.chosen().run
        first = next((run for run in runs if run.is_of_fleet or not of_fleet), runs[0])
        run = next((run for run in runs if run.run_id == chosen), first)

        stood = (run.status, run.going_on)

        def body() -> None:
            now = next((other for other in data.runs(ledger, run.run_id) if other.run_id == run.run_id), run)
            if (now.status, now.going_on) != stood:
                st.rerun()
            _status(ledger, now)
            if len(now.provenances) > 1:
                mix = " and ".join(now.provenances)
                st.error(f"This run mixes events of different provenance ({mix}): no figure may be made of both.")
            else:
                show(ledger, now)

        _follow(body, _every(ledger, [run], live_s))


def ledger_page(title: str, asks: str, show: ShowAll, *, uses: Collection[str]) -> None:
    """A page on all runs of the ledger, whichever is chosen: its heading, then `show`, again while a run goes on.

    `uses` are the choices of the bar that it depends on.
    """
    with _opened(title, asks, uses=uses) as opened:
        if opened is not None:
            ledger, runs = opened
            _follow(lambda: show(ledger, data.runs(ledger, bar.chosen().run or "")), _every(ledger, runs, QUIET_S))


@contextmanager
def _opened(title: str, asks: str, *, uses: Collection[str]) -> Iterator[tuple[Path, list[Run]] | None]:
    """The bar, the heading and the trust chip; then the ledger and its runs, or None and a message.

    The ledger is verified last: what was known of it stands there until then.
    """
    st.html(Path(__file__).with_name("style.css"))
    top, heading = st.container(), st.container()
    with heading:
        st.title(title)
        chip = st.empty()
        st.markdown(asks)
    try:
        ledger = data.root()
    except UserError as error:
        st.error(escape.prose(str(error)))
        yield None
        return
    # As deep as the fragment that takes its place, or what is below the chip would stay beside the fragment's.
    with chip.container(), st.container():
        trust.chip(known_trust(ledger), ledger)
    try:
        runs = data.runs(ledger, bar.asked_run())
        with top:
            for sentence in bar.show(ledger, runs, uses) if runs else []:
                st.warning(sentence)
    except UserError as error:
        st.error(escape.prose(str(error)))
        runs = []
        yield None
    else:
        if runs:
            yield ledger, runs
        else:
            _wait_for_a_run(ledger)
            yield None
    with chip.container():
        _follow_trust(ledger)


def known_trust(ledger: Path) -> Trust:
    """What this session knows of the ledger; it is verified after all else of a page."""
    return cast(Trust, st.session_state.get(_TRUST, trust.known(ledger)))


def _follow_trust(ledger: Path) -> None:
    @st.fragment(run_every=QUIET_S)
    def verify() -> None:
        found, before = trust.look(ledger), known_trust(ledger)
        st.session_state[_TRUST] = found
        if found.problems and not before.problems:
            # What the page says of itself above does not hold as it stands.
            st.rerun()
        trust.chip(found, ledger)

    verify()


def _every(ledger: Path, runs: list[Run], live_s: float) -> float | None:
    if not any(run.status == "running" for run in runs):
        return None
    return live_s if data.quiet_s(ledger) < data.QUIET_S else QUIET_S


def _follow(body: Callable[[], None], every: float | None) -> None:
    """The fragment alone runs again: the page around it stays, and its elements change in place."""

    @st.fragment(run_every=every)
    def fragment() -> None:
        bar.redraw()
        try:
            body()
        except UserError as error:
            st.error(escape.prose(str(error)))

    fragment()


def _wait_for_a_run(ledger: Path) -> None:
    @st.fragment(run_every=LIVE_S)
    def wait() -> None:
        try:
            if data.runs(ledger):
                st.rerun()
        except UserError as error:
            st.error(escape.prose(str(error)))
            return
        st.info("This ledger holds no run yet. `rose demo` or `rose up` writes one; it will appear here by itself.")

    wait()


def _status(ledger: Path, run: Run) -> None:
    """Which run, how it stands, and, for what was not measured, a banner that says so."""
    name = f"**{escape.markdown(run.name)}** ({escape.markdown(run.run_id)})"
    if run.status == "running" and not run.going_on:
        st.markdown(
            f"Run {name} is not heard of since **{words.when(run.last_event_at)}**, and has no end in the ledger."
        )
        allowed = (
            "how long it may be silent is not known"
            if run.expires_s is None
            else (f"it expires after {words.duration(run.expires_s)} of silence")
        )
        st.warning(f"It goes on no more as far as can be told: {allowed}. Figures are as of its last event.")
    elif run.status == "running":
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
        why = f" ({escape.markdown(run.reason)})" if run.reason else ""
        st.markdown(f"Run {name}, {run.status}{why}, {words.when(run.ended_at)}.")
    for provenance in run.provenances:
        banner(provenance)


def banner(provenance: str) -> None:
    """Says of what was not measured that it was not."""
    if provenance != "live":
        st.warning(f"**{provenance.upper()}.** {words.PROVENANCE_WORDS.get(provenance, '')}")


def asked(ledger: Path, ask: Callable[[bool], Priced[T]], key: str) -> T | None:
    """What `ask` gives; of a ledger that does not verify only at the reader's explicit wish, and marked.

    `ask` is told whether an unverified ledger will do; `key` tells the wish apart from others.
    """
    answer = ask(False)
    if answer.value is not None:
        return answer.value
    st.error(escape.prose(answer.error or words.NOT_ENOUGH_DATA))
    if data.verifies(ledger) or not st.checkbox("Show figures that are not verified", key=f"unverified-{key}"):
        return None
    answer = ask(True)
    if answer.value is None:
        st.error(escape.prose(answer.error or words.NOT_ENOUGH_DATA))
    else:
        st.warning("**UNVERIFIED LEDGER.** Do not rely on the figures below.")
    return answer.value


def book(ledger: Path, period: Period) -> PriceBook | None:
    """The price book of a page on a period, or a message."""
    chosen = data.price_book(ledger, period=period)
    if chosen.value is None:
        st.error(escape.prose(chosen.error or words.NOT_ENOUGH_DATA))
    return chosen.value


def stamp(stamped: Stamp, prices: str | None = None) -> None:
    """What all figures below share; made-up prices get a banner. `prices`: more than the stamp knows of them."""
    if stamped.book.example:
        named = escape.markdown(stamped.book.text)
        st.warning(f"**{EXAMPLE_PRICES}.** The price book {named} is made up: no figure below is your cost.")
    st.caption(words.plain(words.stamp(stamped, prices)))


def provenance(present: list[str]) -> str | None:
    """The one provenance of a period, or the one that is chosen in the bar; None, and a message, without any."""
    chosen = bar.chosen().provenance
    if chosen in present or (chosen is None and len(present) == 1):
        return chosen or present[0]
    if chosen is not None:
        st.info(f"No run of this period is {chosen}: it has {' and '.join(present)}. Choose it in the bar.")
    else:
        mix = " and ".join(present)
        st.error(
            f"This period has runs of different provenance ({mix}): no figure may be made of both. Choose one in the "
            "bar, under Provenance."
        )
    return None


def in_period(ledger: Path) -> Asked | None:
    """What the bar asks for, of one provenance and price book; None, and a message, where there is nothing."""
    chosen = bar.chosen()
    period = bar.period(ledger, chosen)
    if period is None:
        st.info("No device has joined a run yet, so nothing is charged.")
        return None
    present = books.provenances(ledger, period)
    if not present:
        st.info(f"No run lies in {words.period(period)}, so nothing is charged.")
        return None
    one = provenance(present)
    priced_by = None if one is None else book(ledger, period)
    if one is None or priced_by is None:
        return None
    return Asked(ledger=ledger, period=period, book=priced_by, provenance=one)


def metric(label: str, figure: Figure, explained: str) -> None:
    """One figure: its value, then its view, unit and what it rests on, then one line of what it means."""
    st.metric(label, words.short(figure))
    st.caption(f"{escape.prose(words.terms(figure))}  \n{escape.prose(explained)}")


def metrics(*cards: tuple[str, Figure, str]) -> None:
    """Figures side by side: label, figure, and what it means."""
    for column, (label, figure, explained) in zip(st.columns(len(cards)), cards, strict=True):
        with column:
            metric(label, figure, explained)


def drilled(made: pl.DataFrame, source: str) -> None:
    """A table of `drill`."""
    table(made, source, drill.columns(made))


def show_table(made: Table, source: str) -> None:
    """A table of pricing: its rows and totals, and below them where they come from and what they say.

    Money is shown as numbers, which sort as numbers; all else as text.
    """
    made = made.plain()
    rows, shown, written = [*made.rows, *made.footer], [], {}
    for index, column in enumerate(made.columns):
        cells = [row[index] for row in rows]
        if column.kind == "money":
            amount = [None if nano is None else nano / 1e9 for nano in cells]
            shown.append(pl.Series(column.name, amount, pl.Float64))
            written[column.name] = amounts.column(column.name, amount, column.unit)
        else:
            shown.append(pl.Series(column.name, [cell_text(column, cell) for cell in cells], pl.String))
    table(pl.DataFrame(shown), f"{source}; {escape.prose(' '.join((f'{made.terms}.', *made.notes)))}", written)


def table(frame: pl.DataFrame, source: str, columns: Mapping[str, Any] | None = None) -> None:
    """A table with the view it comes from below; `columns` says how some of them are written."""
    shown = frame.rename(lambda column: column.replace("_", " "))
    # A sum at the end must not lie out of sight.
    height: Literal["content", "auto"] = "content" if shown.height <= _ROWS_SHOWN else "auto"
    display.table(shown, height=height, column_config=columns)
    st.caption(words.plain(f"Source: {source}"))
    download(frame, source)


def download(frame: pl.DataFrame, name: str, label: str = "Rows as CSV") -> None:
    """The rows of a table or a chart to take along. `name` tells it apart on its page."""
    key = hashlib.sha256(f"{name} {frame.columns}".encode()).hexdigest()[:16]
    session.download_button(
        label,
        lambda: escape.csv(frame),
        "rose.csv",
        "text/csv",
        key=f"csv-{key}",
        type="tertiary",
        icon=":material/download:",
    )
