"""What all pages share: bar, verification badge, provenance, refresh, errors, tables and downloads."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl
import streamlit as st

from dashboard import bar, data, escape, link, login
from dashboard import format as words
from dashboard.data import Run, Scope
from rose.errors import UserError
from rose.ledger import verified
from rose.ledger.access import logged
from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.pricing.figures import Stamp
from rose.pricing.period import Period
from rose.pricing.price_books.pricebook import EXAMPLE_PRICES
from rose.pricing.table import Element, Paragraph, Section, Table, cell_text

LIVE_S, QUIET_S = 3.0, 30.0  # Refresh interval in seconds: of a live run, and of everything else.
_ROWS_SHOWN = 20
_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """The outcome of verification. If verification itself failed, `problems` is None, and `why` has the reason."""

    until: datetime | None
    problems: tuple[str, ...] | None
    why: str = ""

    @property
    def text(self) -> str:
        at = self.until
        clock = "" if at is None else f"{at:%H:%M}" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M}"
        if self.problems:
            return f"{len(self.problems):,} problem{'s' if len(self.problems) > 1 else ''}: not to be trusted"
        if self.problems is None:
            return f"not verified since {clock} UTC" if clock else "never verified"
        return f"verified to {clock} UTC, 0 problems"


def page(
    title: str, asks: str, show: Callable[[Ledger, Run], None], *, live_s: float = LIVE_S, judged: bool = False
) -> None:
    """Draw a page about a run. The default is the newest fleet run or, if `judged`, the newest run with verdicts."""

    def show_run(ledger: Ledger, runs: list[Run]) -> None:
        chosen = bar.chosen().run
        first = next((run for run in runs if (run.judged if judged else run.run_id == run.fleet_run_id)), runs[0])
        run = next((run for run in runs if run.run_id == chosen), first)
        before = (run.status, run.going_on)

        def body() -> None:
            now = next((other for other in data.runs(ledger, run.run_id) if other.run_id == run.run_id), run)
            if (now.status, now.going_on) != before:
                st.rerun()
            _status(now)
            if len(now.provenances) > 1:
                mix = " and ".join(now.provenances)
                st.error(f"This run mixes events of different provenance ({mix}): no figure may combine them.")
            else:
                show(ledger, now)

        # A silent run may be heard again.
        _follow(body, live_s if run.going_on else QUIET_S if run.status == "running" else None)

    _draw(title, asks, show_run, uses=("run",), no_run="the newest judged run" if judged else "the newest")


def ledger_page(title: str, asks: str, show: Callable[[Ledger, list[Run]], None], *, uses: Collection[str]) -> None:
    """Draw a page about all runs. `uses` names the choices in the page's bar."""

    def show_runs(ledger: Ledger, runs: list[Run]) -> None:
        every = QUIET_S if any(run.going_on for run in runs) else None
        _follow(lambda: show(ledger, data.runs(ledger, bar.chosen().run or "")), every)

    _draw(title, asks, show_runs, uses=uses, no_run="every run")


def _draw(
    title: str, asks: str, show: Callable[[Ledger, list[Run]], None], *, uses: Collection[str], no_run: str
) -> None:
    """Draw the heading, the bar and the page. Draw the verification badge last, because verification takes time."""
    st.html(Path(__file__).with_name("style.css"))
    st.title(title)
    chip = st.empty()
    st.markdown(asks)
    with errors_shown():
        ledger = data.opened()
        with errors_shown():
            runs = data.runs(ledger, bar.from_address()[0].run or "")
            if runs and (ignored := bar.show(ledger, runs, uses, no_run)):
                st.warning(f"Unknown in this ledger, and left out: {', '.join(ignored)}.")
            if runs:
                show(ledger, runs)
            else:
                _follow(lambda: _wait_for_a_run(ledger), LIVE_S)
        with chip.container():
            _follow(lambda: _chip(look(ledger), ledger), QUIET_S)


@contextmanager
def errors_shown() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        st.error(escape.prose(data.why(error)))


def look(ledger: Ledger) -> Trust:
    problems: tuple[str, ...] | None = None
    why = ""
    try:
        problems = tuple(data.problems(ledger))
    except UserError as error:
        why = str(error)
    last = verified.state(ledger.folder)
    until = None if last is None else datetime.fromtimestamp(last.until_us / 1e6, UTC)
    return Trust(until=until, problems=problems, why=why)


def _chip(trust: Trust, ledger: Ledger) -> None:
    colour: Literal["green", "orange", "red"] = (
        "red" if trust.problems else "orange" if trust.problems is None else "green"
    )
    st.badge(
        trust.text, color=colour, help=escape.markdown(f"Ledger {ledger.folder.name}: {verified.text(ledger.folder)}.")
    )
    if trust.problems:
        listed = "\n".join(f"- {escape.markdown(problem)}" for problem in trust.problems[:_PROBLEMS_SHOWN])
        more = len(trust.problems) - _PROBLEMS_SHOWN
        rest = f"\n- and {more:,} more; `rose ledger verify` lists them" if more > 0 else ""
        st.error(f"**This ledger does not verify.** Its figures may be wrong.\n\n{listed}{rest}")
    elif trust.why:
        st.error(f"**This ledger could not be verified.** {escape.prose(trust.why)}")


def _follow(body: Callable[[], None], every: float | None) -> None:
    """Draw `body` as a Streamlit fragment, and redraw only this fragment every `every` seconds (None: never)."""

    @st.fragment(run_every=every)
    def fragment() -> None:
        bar.redraw()
        with errors_shown():
            body()

    fragment()


def _wait_for_a_run(ledger: Ledger) -> None:
    if data.runs(ledger):
        st.rerun()
    st.info("This ledger has no run yet. `rose demo` or `rose up` writes one; it then appears here.")


def _status(run: Run) -> None:
    name = f"**{escape.markdown(run.name)}** ({escape.markdown(run.run_id)})"
    last = words.when(run.last_event_at)
    if run.status == "running" and not run.going_on:
        st.markdown(f"Run {name}: no event since **{last}**, and no event says that the run ended.")
        expires = "" if run.expires_s is None else f": it expires after {words.duration(run.expires_s)} of silence"
        st.warning(f"The run has probably stopped{expires}. Figures are as of its last event.")
    elif run.status == "running":
        st.markdown(f"Run {name}, running. Last event {last}. This page follows the run.")
    else:
        why = f" ({escape.markdown(run.reason)})" if run.reason else ""
        st.markdown(f"Run {name}, {run.status}{why}, {words.when(run.ended_at)}.")
    for provenance in run.provenances:
        banner(provenance)


def banner(provenance: str) -> None:
    if provenance != "live":
        st.warning(f"**{provenance.upper()}.** {words.PROVENANCE_WORDS.get(provenance, '')}")


def stamp(stamped: Stamp) -> None:
    """Show the currency, period, provenance and price book, and warn of example prices."""
    if stamped.book.example:
        name = escape.markdown(stamped.book.text)
        st.warning(
            f"**{EXAMPLE_PRICES}.** The price book {name} has example prices: no amount on this page is your cost."
        )
    begin, end = (stamped.to_json()["period"][name][:19].replace("T", " ") for name in ("from", "to"))
    checked = "Ledger verified." if stamped.verified else "**UNVERIFIED LEDGER: do not rely on these figures.**"
    text = f"All amounts in {stamped.currency}. Period {begin} to {end} UTC. Provenance: {stamped.provenance}. "
    st.caption(words.plain(f"{text}{escape.markdown(stamped.book.line)}. {checked}"))


def scope(ledger: Ledger) -> Scope | None:
    """Return the chosen scope. Without a period or provenance, show why and return None. Raises UserError."""
    if (choices := charged(ledger)) is None:
        return None
    period, provenance = choices
    return Scope(ledger=ledger, period=period, book=data.price_book(ledger, period=period), provenance=provenance)


def charged(ledger: Ledger) -> tuple[Period, str] | None:
    """Return the chosen period and provenance. If one is missing, show why and return None. Raises UserError."""
    chosen = bar.chosen()
    period = data.period(ledger, chosen)
    if period is None:
        st.info("No device has joined a run yet, so nothing is charged.")
        return None
    provenances = data.provenances(ledger, period)
    if not provenances:
        st.info(f"No run lies in {words.period(period)}, so nothing is charged.")
        return None
    if chosen.provenance not in (None, *provenances) or (chosen.provenance is None and len(provenances) > 1):
        mix = " and ".join(provenances)
        st.error(f"Runs of this period are {mix}; no figure may combine them. Choose a provenance in the bar.")
        return None
    provenance = chosen.provenance or provenances[0]
    banner(provenance)
    return period, provenance


def verdict(good: bool | None, text: str, *, over: bool = False) -> None:
    """Show a verdict: green if good, red if not, amber if unknown. It is grey if the run has ended (`over`)."""
    if over:
        with st.container(border=True):
            st.markdown(f":gray-badge[run ended] {text}")
    else:
        (st.warning if good is None else st.success if good else st.error)(text)


def figures(*cards: tuple[str, str, str]) -> None:
    for column, (label, value, about) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value)
        column.caption(escape.prose(about))


def show(section: Section, source: str, *, skip: Collection[str] = (), folded: Collection[str] = ()) -> None:
    """Show a section without the parts in `skip`. Parts in `folded` open on a click."""
    for name, part in section.parts.items():
        if name in folded:
            with st.expander(part.title if isinstance(part, Table) else name):
                elements([part], source, titles=False)
        elif name not in skip:
            elements([part], source)


def elements(parts: Iterable[Element], source: str, *, titles: bool = True) -> None:
    for part in parts:
        match part:
            case Table():
                if part.title and titles:
                    st.subheader(escape.markdown(part.title))
                pricing_table(part, source)
            case Paragraph():
                text = "  \n".join(escape.prose(line) for line in part.lines)
                if part.alarm:
                    st.error(text)
                else:
                    st.markdown(words.plain(text))
            case _:
                st.markdown(words.plain(escape.prose(part)))


def pricing_table(priced: Table, source: str) -> None:
    """Show a table of pricing with its totals, source and notes. In tables without amounts, text wraps."""
    priced = priced.plain()
    rows, shown, money = [*priced.rows, *priced.footer], [], {}
    for index, column in enumerate(priced.columns):
        cells = [row[index] for row in rows]
        if column.kind == "money":
            amount = [None if nano is None else nano / 1e9 for nano in cells]
            shown.append(pl.Series(column.name, amount, pl.Float64))
            money[column.name] = words.money_column(column.name, amount)
        else:
            shown.append(pl.Series(column.name, [escape.cell(cell_text(column, cell)) for cell in cells], pl.String))
    terms = f"{priced.terms}." if priced.terms else ""
    below = f"{source}; {escape.prose(' '.join((terms, *priced.notes)))}"
    if money:
        table(pl.DataFrame(shown), below, money)
    else:
        rows_of_text = pl.DataFrame(shown)
        escape.static(rows_of_text)
        _below(rows_of_text, below, None)


def query(ledger: Ledger, name: str, nothing: str, columns: str = "", **variables: object) -> bool:
    """Show a named query, or the text `nothing` if the query has no rows. Return whether the query has rows."""
    with errors_shown():
        rows = data.named_rows(ledger, name, columns, **variables)
        if rows.is_empty():
            st.info(nothing)
            return False
        if "reason" in rows.columns:
            rows = rows.with_columns(pl.col("reason").cast(pl.String).replace(words.REASONS))
        more = f" The first {data.ROWS_MAX:,} rows." if rows.height == data.ROWS_MAX else ""
        reading = re.sub("_ns`", "`", re.sub(",( in)? nanoseconds", "", named.load(name).reading))
        table(rows, f"`rose query {name}`.{more} {escape.prose(reading)}", name=name)
        return True
    return False


def table(
    frame: pl.DataFrame,
    source: str,
    columns: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    on_pick: Callable[[int | None], None] | None = None,
) -> None:
    """Show a table with its source. `on_pick` receives the clicked row's number or None, and needs a `name`."""
    shown = frame.rename(lambda column: column.replace("_", " "))
    # A sum in the last row stays visible.
    height: Literal["content", "auto"] = "content" if shown.height <= _ROWS_SHOWN else "auto"
    shares = [column.name for column in shown if column.name.endswith("share") and column.dtype.is_float()]
    shown = shown.with_columns(pl.col(shares) * 100)
    formats = {column.name: words.column(column) for column in shown if column.dtype.is_numeric()}
    options: dict[str, Any] = {"height": height, "column_config": formats | dict(columns or {})}
    if on_pick is not None:
        key = f"rows-{name}"

        def picked() -> None:
            rows = st.session_state[key]["selection"]["rows"]
            on_pick(rows[0] if rows else None)

        options |= {"key": key, "on_select": picked, "selection_mode": "single-row"}
    escape.table(shown, **options)
    _below(frame, source, name)


def _below(frame: pl.DataFrame, source: str, name: str | None) -> None:
    st.caption(words.plain(f"Source: {source.rstrip(' ;')}"))
    download(frame, name or source)


def download(frame: pl.DataFrame, name: str, label: str = "Rows as CSV") -> None:
    """Offer rows as CSV. `name` must be unique on the page."""
    key = f"csv-{hashlib.sha256(f'{name} {frame.columns}'.encode()).hexdigest()[:16]}"
    options = {"key": key, "type": "tertiary", "icon": ":material/download:"}
    download_button(label, lambda: escape.csv(frame), "rose.csv", "text/csv", **options)


def download_button(label: str, make: Callable[[], bytes | str], name: str, mime: str, **options: Any) -> None:
    """Offer a file. A click creates the file and records the export in the access log."""
    ledger, who = data.opened(), login.person()

    def content() -> bytes | str:
        with logged(ledger, "export", f"dashboard: {name}", who=who):
            return make()

    st.download_button(label, content, name, mime, on_click="ignore", **options)


def radio(label: str, name: str, options: Mapping[str, str]) -> str:
    """Let the reader choose one of `options` (value to label). The address keeps the choice. Return the value."""
    key = f"page-{name}"
    st.session_state[key] = value = str(getattr(bar.chosen(), name))

    def choose() -> None:
        bar.choose(**{name: st.session_state[key]})

    st.radio(label, list(options), key=key, format_func=options.__getitem__, horizontal=True, on_change=choose)
    return value


def window(run: Run) -> tuple[data.Window, dict[str, str]]:
    """Let the reader choose a window before the run's end. Return the window, also as variables of a named query."""
    seconds = link.WINDOWS_S[radio("Last", "window", {name: name for name in link.WINDOWS_S})]
    whole = run.whole
    shown = data.Window(max(whole.from_ns, whole.to_ns - seconds * 10**9), whole.to_ns)
    since, until = (f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S}" for ns in shown)
    return shown, {"since": since, "until": until}
