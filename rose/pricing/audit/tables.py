"""An explanation as lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rose.pricing.audit.evidence import Row
from rose.pricing.audit.explain import Explanation
from rose.pricing.closing.period import hour_text
from rose.pricing.table import Column, Element, Table

#: Sums of a step that are shown; others are counted.
_SUMS_SHOWN = 12


def explanation(explained: Explanation, *, with_events: bool) -> Iterator[Element]:
    amount, asked = explained.amount, explained.device_hour
    yield f"{amount.text}, {explained.title}  [{amount.view}; {amount.stamp}]"
    hour, count = hour_text(asked.hour_ns), len(explained.rows)
    yield f"run {asked.run_id}, device {asked.device_id}, hour {hour}; {count} charges"
    for step in explained.steps:
        yield ""
        yield f"<- {step.title}: {step.says}"
        shown = [added for added in step.sums if not added.ok]
        shown += [added for added in step.sums if added.ok and added.asked][:_SUMS_SHOWN]
        for added in shown:
            mark = "re-adds    " if added.ok else "DOES NOT RE-ADD"
            yield f"   {mark} {added.text}"
        if len(step.sums) > len(shown):
            yield f"   and {len(step.sums) - len(shown)} more sums that re-add"
    yield ""
    yield "<- the ledger"
    for span in explained.spans:
        holds = {True: "its hash chain holds", False: "ITS HASH CHAIN DOES NOT HOLD", None: "archived"}[span.holds]
        files = f"{span.files[0]}" + (f" and {len(span.files) - 1} more files" if len(span.files) > 1 else "")
        yield (
            f"   writer {span.writer}, {span.events:,} events, seq {span.first_seq} to {span.last_seq}, in {files}; "
            f"{holds}"
        )
    for note in explained.notes:
        yield f"note: {note}"
    if with_events:
        for kind, rows in explained.events.items():
            if rows:
                yield _events(kind, rows)


def _events(kind: str, rows: Sequence[Row]) -> Table:
    names = list(rows[0])
    return Table(
        title=f"{kind}: {len(rows):,} events",
        columns=tuple(map(Column, names)),
        rows=tuple(tuple(row[name] for name in names) for row in rows),
    )
