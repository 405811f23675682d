"""The books as tables for a terminal, each titled with its view, currency, period and provenance.

What they hold is text as it stands: print them on a console without markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from rose.clock import utc
from rose.pricing.audit.evidence import Row
from rose.pricing.audit.explain import Explanation
from rose.pricing.closing.records import Posting
from rose.pricing.closing.statement import Statement
from rose.pricing.figures import AMORTIZED, Stamp
from rose.pricing.money import format_usd
from rose.pricing.run.tables import WIDTH
from rose.pricing.watch.anomaly import RULE, Anomaly, Watch, roughly, signed
from rose.pricing.watch.budget import Expected, TeamBudget
from rose.pricing.watch.effects import BY

#: Sums of a step that are written out; the others are counted.
_SUMS_SHOWN = 12


def closes(posted: Mapping[str, Sequence[Posting]]) -> Iterator[RenderableType]:
    """Every close, with its corrections."""
    approved = any(posting.approval for of in posted.values() for posting in of)
    who = ["approved by"] if approved else []
    table = _table("Closed periods", "amortized; USD", "close", "from", "to", "closed", "corrections", "total", *who)
    table.columns[0].no_wrap = True
    for close_id, (first, *later) in posted.items():
        corrected = sum(posting.cost_nano for posting in later)
        table.add_row(
            close_id + ("" if first.verified else " (UNVERIFIED)"),
            _hour(first.from_ns),
            _hour(first.to_ns),
            format_usd(first.cost_nano),
            f"{len(later)}: {signed(corrected)}" if later else "none",
            format_usd(first.cost_nano + corrected),
            *([(first.approval or {}).get("approved_by", "nobody")] if approved else []),
        )
    yield table


def statement(of: Statement) -> Iterator[RenderableType]:
    """A close: who and when, its corrections, and the drill-down."""
    first, *later = of.close.posted
    stamp = of.close.stamp
    yield (
        f"{of.close.close_id}: {utc(stamp.from_ns)} to {utc(stamp.to_ns)}, {stamp}\n"
        f"closed {utc(first.posted_ns)} by {first.who}, ROSE {first.rose_version}\n{stamp.book.line}\n"
        f"SHA-256 of the close {first.sha256}"
        + (f"; open runs: {', '.join(first.open_runs)}" if first.open_runs else "")
    )
    if first.covers:
        table = _table(
            "Closed before, and counted here since", f"{AMORTIZED}; {stamp}",
            "close", "corrections", "from", "to", "as it stood", "in this close", "difference",
        )  # fmt: skip
        for part in first.covers:
            hours = (_hour(part.from_ns), _hour(part.to_ns))
            amounts = (format_usd(part.before_nano), format_usd(part.cost_nano))
            difference = signed(part.cost_nano - part.before_nano)
            table.add_row(part.close_id, str(part.correction), *hours, *amounts, difference)
        yield table
    if later:
        table = _table("Corrections", f"{AMORTIZED}; {stamp}", "no.", "posted", "amount", "rows", "why, and by whom")
        for posting in later:
            reason = f"{posting.reason} ({posting.who})" + ("" if posting.verified else " UNVERIFIED LEDGER")
            row = (str(posting.number), utc(posting.posted_ns)[:19] + "Z", signed(posting.cost_nano))
            table.add_row(*row, f"{posting.rows:,}", reason)
        yield table
    view = of.total.view
    named = " by ".join(("", *of.by))
    table = _table(f"Charges{named}", f"{view}; {stamp}", *of.by, "cost", "share", "time", "tokens", words=len(of.by))
    for line in of.lines:
        counts = [figure.text if figure else "-" for figure in (line.time, line.tokens)]
        table.add_row(*line.values, line.cost.text, line.share.text, *counts)
    table.add_section()
    blank = [""] * (len(of.by) - 1) if of.by else []
    table.add_row(*(["total", *blank] if of.by else []), of.total.text, "100.0%", "", "", style="bold")
    if later:
        table.caption = f"closed {of.closed.text} + corrections {of.corrections.text} = {of.total.text}"
    yield table


def budgets(of: Iterable[TeamBudget]) -> Iterator[RenderableType]:
    """Budgets of a month beside what was spent, and the forecast."""
    rows = list(of)
    stamp = rows[0].spent.stamp
    table = _table(
        f"Budgets of {rows[0].month}", f"{AMORTIZED}; {stamp}",
        "team", "budget", "spent", "of it closed", "left", "forecast", "95% interval", "goes over",
    )  # fmt: skip
    for each in rows:
        table.add_row(
            each.team, each.budget.text, each.spent.text, each.closed.text, each.left.text,
            each.forecast.text if each.forecast.value is not None else "-", each.forecast.interval_text or "-",
            each.over.text if each.over.value is not None else "-",
            style="bold red" if int(each.left.value or 0) < 0 else None,
        )  # fmt: skip
    notes = sorted({each.forecast.why or each.forecast.basis for each in rows if each.known})
    unknown = [each.team for each in rows if not each.known]
    table.caption = "; ".join(notes + ([f"no charge at all: {', '.join(unknown)}"] if unknown else []))
    yield table


def forecasts(rows: Sequence[Expected]) -> Iterator[RenderableType]:
    """What a month will have cost: the fleet, then each team."""
    stamp = rows[0].spent.stamp
    table = _table(
        f"What {rows[0].month} will have cost", f"{AMORTIZED}; {stamp}", "team", "spent", "forecast", "95% interval"
    )
    for row in rows:
        table.add_row(
            row.team or "the fleet", row.spent.text, row.forecast.text if row.forecast.value is not None else "-",
            row.forecast.interval_text or "-", style=None if row.team else "bold",
        )  # fmt: skip
    table.caption = "; ".join(dict.fromkeys(row.forecast.why or row.forecast.basis for row in rows))
    yield table


def watch(of: Watch) -> Iterator[RenderableType]:
    """Days that stand out, each with what drove it; or that there are none, or too few days to say."""
    yield f"{len(of.judged)} days judged ({of.stamp}): {RULE}."
    if of.not_judged:
        days = f"{of.not_judged[0]}" + (f" to {of.not_judged[-1]}" if len(of.not_judged) > 1 else "")
        yield f"not enough data for {len(of.not_judged)} days ({days}): too few charged days come before them"
    if of.judged and not of.anomalies:
        yield "No day stands out."
    for anomaly in of.anomalies:
        yield _anomaly(anomaly)


def explanation(of: Explanation, *, with_events: bool) -> Iterator[RenderableType]:
    """The chain from an amount down to the ledger's events."""
    yield f"{of.amount.text}, {of.title}  [{of.amount.view}; {of.amount.stamp}]"
    yield f"run {of.of.run_id}, device {of.of.device_id}, hour {_hour(of.of.hour_ns)}; {len(of.rows)} charges"
    for step in of.steps:
        yield f"\n<- {step.title}: {step.says}"
        shown = [each for each in step.sums if not each.ok]
        shown += [each for each in step.sums if each.ok and each.asked][:_SUMS_SHOWN]
        for each in shown:
            mark = "re-adds    " if each.ok else "DOES NOT RE-ADD"
            yield f"   {mark} {each.text}"
        if len(step.sums) > len(shown):
            yield f"   and {len(step.sums) - len(shown)} more sums that re-add"
    yield "\n<- the ledger"
    for span in of.spans:
        holds = {True: "its hash chain holds", False: "ITS HASH CHAIN DOES NOT HOLD", None: "archived"}[span.holds]
        files = f"{span.files[0]}" + (f" and {len(span.files) - 1} more files" if len(span.files) > 1 else "")
        yield (
            f"   writer {span.writer}, {span.events:,} events, seq {span.first_seq} to {span.last_seq}, in {files}; "
            f"{holds}"
        )
    for note in of.notes:
        yield f"note: {note}"
    if with_events:
        for kind, rows in of.events.items():
            if rows:
                yield _events(kind, rows)


def _events(kind: str, rows: Sequence[Row]) -> Table:
    columns = list(rows[0])
    table = Table(title=f"{kind}: {len(rows):,} events", title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in columns))
    return table


def _anomaly(of: Anomaly) -> Table:
    away = "" if of.deviations is None else f", {of.deviations:.1f} deviations"
    table = _table(
        f"{of.day}: {of.metric} {of.value.text}, {roughly(of.change.total)} from {of.median.text} on {of.compared_with}"
        f"{away}",
        f"{of.value.unit.removeprefix('nano_')}; {of.value.view}; {of.value.stamp}",
        "of", "", *of.change.effects, "change", words=2,
    )  # fmt: skip
    for name in BY:
        for value, row in sorted(of.change.by(name).items(), key=lambda item: (-abs(sum(item[1].values())), item[0])):
            amounts = [roughly(row[effect]) for effect in of.change.effects]
            table.add_row(name.replace("_", " "), value, *amounts, roughly(sum(row.values())))
        table.add_section()
    totals = [roughly(amount) for amount in of.change.effects.values()]
    table.add_row("all", "", *totals, roughly(of.change.total), style="bold")
    table.caption = of.driver
    return table


def _table(title: str, stamp: str | Stamp, *columns: str, words: int = 1) -> Table:
    table = Table(
        title=f"{title}  [{stamp}]", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, width=WIDTH
    )
    for index, column in enumerate(columns):
        prose = index < words or column.startswith("why")
        table.add_column(column, justify="left" if prose else "right", overflow="fold")
    return table


def _hour(ns: int) -> str:
    return utc(ns)[:13].removesuffix("T00")
