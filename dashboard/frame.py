"""What every page stands in: bar and trust chip, provenance, live refresh, errors as messages, tables and files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl
import streamlit as st

from dashboard import bar, data, display, escape, link, login
from dashboard import format as words
from dashboard.data import Priced, Run, Scope
from rose.errors import UserError
from rose.ledger import verified
from rose.ledger.access import logged
from rose.ledger.reading import named
from rose.pricing.figures import EXAMPLE_PRICES, Stamp
from rose.pricing.table import Element, Paragraph, Section, Table, cell_text

T = TypeVar("T")
Show = Callable[[Path, Run], None]
ShowAll = Callable[[Path, list[Run]], None]

#: How often a page looks for news, in seconds: of a run that goes on, and where none is expected soon.
LIVE_S, QUIET_S = 3.0, 30.0
#: Tables of so many rows are shown whole; longer ones scroll.
_ROWS_SHOWN = 20
_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What is known of a ledger. `problems` None: it was not looked at, and `why` says why."""

    until: datetime | None
    problems: tuple[str, ...] | None
    why: str = ""

    @property
    def text(self) -> str:
        """A few words, for the chip."""
        at = self.until
        clock = "" if at is None else f"{at:%H:%M}" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M}"
        if self.problems:
            return f"{len(self.problems):,} problem{'s' if len(self.problems) > 1 else ''}: not to be trusted"
        if self.problems is None:
            return f"not verified since {clock} UTC" if clock else "never verified"
        return f"verified to {clock} UTC, 0 problems"


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
            _status(now)
            if len(now.provenances) > 1:
                mix = " and ".join(now.provenances)
                st.error(f"This run mixes events of different provenance ({mix}): no figure may be made of both.")
            else:
                show(ledger, now)

        _follow(body, live_s if run.going_on else None)


def ledger_page(title: str, asks: str, show: ShowAll, *, uses: Collection[str]) -> None:
    """A page on all runs of the ledger: its heading, then `show`, again while a run goes on.

    `uses` are the choices of the bar that it depends on.
    """
    with _opened(title, asks, uses=uses) as opened:
        if opened is not None:
            ledger, runs = opened
            every = QUIET_S if any(run.going_on for run in runs) else None
            _follow(lambda: show(ledger, data.runs(ledger, bar.chosen().run or "")), every)


@contextmanager
def _opened(title: str, asks: str, *, uses: Collection[str]) -> Iterator[tuple[Path, list[Run]] | None]:
    """The heading and the bar; then the ledger and its runs, or None and a message; the trust chip last."""
    st.html(Path(__file__).with_name("style.css"))
    st.title(title)
    chip = st.empty()
    st.markdown(asks)
    try:
        ledger = data.root()
    except UserError as error:
        st.error(escape.prose(str(error)))
        yield None
        return
    try:
        runs = data.runs(ledger, bar.requested_run())
        if runs and (ignored := bar.show(ledger, runs, uses)):
            st.warning(f"Unknown in this ledger, and left out: {', '.join(ignored)}.")
    except UserError as error:
        st.error(escape.prose(str(error)))
        yield None
    else:
        if runs:
            yield ledger, runs
        else:
            _wait_for_a_run(ledger)
            yield None
    with chip.container():
        _follow_trust(ledger)


def look(ledger: Path) -> Trust:
    """Verify what is new or changed since. What keeps it from that is in the answer, not raised."""
    try:
        problems = tuple(data.problems(ledger))
    except UserError as error:
        return Trust(until=_verified_until(ledger), problems=None, why=str(error))
    return Trust(until=_verified_until(ledger), problems=problems)


def _verified_until(ledger: Path) -> datetime | None:
    last = verified.state(ledger)
    return None if last is None else datetime.fromtimestamp(last.until_us / 1e6, UTC)


def _follow_trust(ledger: Path) -> None:
    @st.fragment(run_every=QUIET_S)
    def verify() -> None:
        _chip(look(ledger), ledger)

    verify()


def _chip(trust: Trust, ledger: Path) -> None:
    """A badge with the outcome in words; what is wrong is written out below it."""
    colour: Literal["green", "orange", "red"] = (
        "red" if trust.problems else "orange" if trust.problems is None else "green"
    )
    st.badge(trust.text, color=colour, help=escape.markdown(f"Ledger {ledger.name}: {verified.text(ledger)}."))
    if trust.problems:
        listed = "\n".join(f"- {escape.markdown(problem)}" for problem in trust.problems[:_PROBLEMS_SHOWN])
        more = len(trust.problems) - _PROBLEMS_SHOWN
        rest = f"\n- and {more:,} more; `rose ledger verify` lists them" if more > 0 else ""
        st.error(f"**This ledger does not verify.** Figures of it may be wrong.\n\n{listed}{rest}")
    elif trust.why:
        st.error(f"**This ledger could not be verified.** {escape.prose(trust.why)}")


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


def _status(run: Run) -> None:
    """Which run, how it stands, and, for what was not measured, a banner that says so."""
    name = f"**{escape.markdown(run.name)}** ({escape.markdown(run.run_id)})"
    last = words.when(run.last_event_at)
    if run.status == "running" and not run.going_on:
        st.markdown(f"Run {name} is not heard of since **{last}**, and has no end in the ledger.")
        allowed = (
            "how long it may be silent is not known"
            if run.expires_s is None
            else f"it expires after {words.duration(run.expires_s)} of silence"
        )
        st.warning(f"The run has probably stopped: {allowed}. Figures are as of its last event.")
    elif run.status == "running":
        st.markdown(f"Run {name}, going on. Last event {last}. This page follows it.")
    else:
        why = f" ({escape.markdown(run.reason)})" if run.reason else ""
        st.markdown(f"Run {name}, {run.status}{why}, {words.when(run.ended_at)}.")
    for provenance in run.provenances:
        banner(provenance)


def banner(provenance: str) -> None:
    """Say that figures were not measured, where they were not."""
    if provenance != "live":
        st.warning(f"**{provenance.upper()}.** {words.PROVENANCE_WORDS.get(provenance, '')}")


def value_of(answer: Priced[T]) -> T | None:
    """Return the value of the answer. Without one, return None and show the reason on the page."""
    if answer.value is None:
        st.error(escape.prose(answer.error or words.NOT_ENOUGH_DATA))
    return answer.value


def stamp(stamped: Stamp) -> None:
    """What all figures below share; made-up prices get a banner."""
    if stamped.book.example:
        name = escape.markdown(stamped.book.text)
        st.warning(f"**{EXAMPLE_PRICES}.** The price book {name} is made up: no figure below is your cost.")
    st.caption(words.plain(words.stamp(stamped)))


def scope(ledger: Path) -> Scope | None:
    """What the bar asks for, of one provenance and price book; None, and a message, where there is nothing."""
    chosen = bar.chosen()
    period = data.period(ledger, chosen)
    if period is None:
        st.info("No device has joined a run yet, so nothing is charged.")
        return None
    present = data.provenances(ledger, period)
    if not present:
        st.info(f"No run lies in {words.period(period)}, so nothing is charged.")
        return None
    if chosen.provenance not in (None, *present) or (chosen.provenance is None and len(present) > 1):
        mix = " and ".join(present)
        st.error(f"Runs of this period are {mix}; no figure may be made of both. Choose one in the bar: Provenance.")
        return None
    provenance = chosen.provenance or present[0]
    banner(provenance)
    book = value_of(data.price_book(ledger, period=period))
    return None if book is None else Scope(ledger=ledger, period=period, book=book, provenance=provenance)


def figures(*cards: tuple[str, str, str]) -> None:
    """Figures side by side: label, value, and what it means."""
    for column, (label, value, about) in zip(st.columns(len(cards)), cards, strict=True):
        column.metric(label, value)
        column.caption(escape.prose(about))


def show(section: Section, source: str, *, skip: Collection[str] = (), folded: Collection[str] = ()) -> None:
    """The parts of a section in their order, without those of `skip`; those of `folded` open with a click."""
    for name, part in section.parts.items():
        if name in folded:
            with st.expander(part.title if isinstance(part, Table) else name):
                elements([part], source, titles=False)
        elif name not in skip:
            elements([part], source)


def elements(parts: Iterable[Element], source: str, *, titles: bool = True) -> None:
    """A document of pricing: its tables and paragraphs."""
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


def pricing_table(made: Table, source: str) -> None:
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
            written[column.name] = words.money_column(column.name, amount, column.unit)
        else:
            texts = [escape.cell(cell_text(column, cell)) for cell in cells]
            shown.append(pl.Series(column.name, texts, pl.String))
    terms = f"{made.terms}." if made.terms else ""
    table(pl.DataFrame(shown), f"{source}; {escape.prose(' '.join((terms, *made.notes)))}", written)


def query(
    ledger: Path, name: str, nothing: str, columns: Sequence[str] = (), **variables: object
) -> pl.DataFrame | None:
    """The rows of a named query as a table, with how to read it; `nothing` is the text where there are none."""
    rows = value_of(data.named_rows(ledger, name, columns, **variables))
    if rows is None or rows.is_empty():
        if rows is not None:
            st.info(nothing)
        return rows
    more = f" The first {data.ROWS_MAX:,} rows." if rows.height == data.ROWS_MAX else ""
    reading = named.load(name).reading.replace("_ns`", "`")
    # The columns of this table say their units.
    reading = reading.replace(", in nanoseconds", "").replace(", nanoseconds", "")
    shares = [column.replace("_", " ") for column in rows.columns if column.endswith("_share")]
    percent = dict.fromkeys(shares, st.column_config.NumberColumn(format="percent"))
    table(rows, f"`rose query {name}`.{more} {escape.prose(reading)}", percent, name=name)
    return rows


def table(
    frame: pl.DataFrame,
    source: str,
    columns: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    key: str | None = None,
    on_pick: Callable[[int | None], None] | None = None,
) -> None:
    """A table with where it comes from below; `columns` says how some of them are written.

    `on_pick` is called with the number of the row that a reader clicks; such a table needs a `key`.
    """
    shown = frame.rename(lambda column: column.replace("_", " "))
    # A sum at the end must not lie out of sight.
    height: Literal["content", "auto"] = "content" if shown.height <= _ROWS_SHOWN else "auto"
    options: dict[str, Any] = {"height": height, "column_config": columns}
    if on_pick is not None and key is not None:
        pick, chosen_key = on_pick, key

        def picked() -> None:
            rows = st.session_state[chosen_key]["selection"]["rows"]
            pick(rows[0] if rows else None)

        options |= {"key": key, "on_select": picked, "selection_mode": "single-row"}
    display.table(shown, **options)
    st.caption(words.plain(f"Source: {source}"))
    download(frame, name or source)


def download(frame: pl.DataFrame, name: str, label: str = "Rows as CSV") -> None:
    """The rows of a table or a chart to take along. `name` tells it apart on its page."""
    key = hashlib.sha256(f"{name} {frame.columns}".encode()).hexdigest()[:16]
    icon = ":material/download:"
    download_button(
        label, lambda: escape.csv(frame), "rose.csv", "text/csv", key=f"csv-{key}", type="tertiary", icon=icon
    )


def download_button(label: str, make: Callable[[], bytes | str], name: str, mime: str, **options: Any) -> None:
    """A file that is made when it is taken, and is then in the ledger's access log, where that is kept."""
    ledger, who = data.root(), login.person()

    def content() -> bytes | str:
        with logged(ledger, "export", f"dashboard: {name}", who=who):
            return make()

    st.download_button(label, content, name, mime, on_click="ignore", **options)


def radio(label: str, name: str, options: Mapping[str, str]) -> str:
    """A choice of the page that is in the address as `name`; `options` has their texts."""
    key = f"page-{name}"
    st.session_state[key] = value = str(getattr(bar.chosen(), name))

    def choose() -> None:
        bar.choose(**{name: st.session_state[key]})

    st.radio(label, list(options), key=key, format_func=options.__getitem__, horizontal=True, on_change=choose)
    return value


def window(run: Run) -> data.Window:
    """The time that charts of a fleet show: the last hours of a run, which the reader chooses."""
    seconds = link.WINDOWS_S[radio("Last", "window", {name: name for name in link.WINDOWS_S})]
    whole = run.whole
    return data.Window(max(whole.from_ns, whole.to_ns - seconds * 10**9), whole.to_ns)


def period_text(window: data.Window) -> dict[str, str]:
    """`since` and `until` of a named query."""
    texts = (f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S}" for ns in (window.from_ns, window.to_ns))
    return dict(zip(("since", "until"), texts, strict=True))
