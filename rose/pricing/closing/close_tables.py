"""Tables of closed periods."""

from collections.abc import Iterator, Mapping, Sequence

from rose.clock import utc
from rose.pricing.closing.store import Posting
from rose.pricing.money import format_usd, signed_usd
from rose.pricing.period import hour_text
from rose.pricing.table import Element, Table, columns


def closes(posted: Mapping[str, Sequence[Posting]]) -> Iterator[Table]:
    rows = []
    for close_id, (first, *later) in posted.items():
        corrected = sum(posting.cost_nano for posting in later)
        rows.append(
            (
                close_id + ("" if first.verified else " (UNVERIFIED)"),
                hour_text(first.from_ns),
                hour_text(first.to_ns),
                format_usd(first.cost_nano),
                f"{len(later)}: {signed_usd(corrected)}" if later else "none",
                format_usd(first.cost_nano + corrected),
            )
        )
    names = ("close", "from", "to", "closed", "corrections", "total")
    yield Table(
        title="Closed periods", view="amortized; USD", columns=columns(*names, whole=("close",)), rows=tuple(rows)
    )


def postings(posted: Sequence[Posting]) -> Iterator[Element]:
    first = posted[0]
    yield f"{first.close_id}: {utc(first.from_ns)} to {utc(first.to_ns)}, {first.provenance}, ROSE {first.rose_version}"
    yield f"SHA-256 of the close {first.sha256}"
    if first.open_runs:
        yield f"open runs: {', '.join(first.open_runs)}"
    yield Table(
        title="Postings",
        view="amortized; USD",
        columns=columns("no.", "posted", "amount", "rows", "prices", "why, and by whom", text=("why, and by whom",)),
        rows=tuple(
            (
                str(posting.number),
                utc(posting.posted_ns)[:19] + "Z",
                signed_usd(posting.cost_nano) if posting.number else format_usd(posting.cost_nano),
                f"{posting.rows:,}",
                f"{posting.book.name} {posting.book.version}",
                f"{posting.reason or 'close'} ({posting.posted_by}){'' if posting.verified else ' UNVERIFIED LEDGER'}",
            )
            for posting in posted
        ),
    )
