"""The register of invoices: what was issued to whom, as the ledger's events say, each number once and for good."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.clock import utc, utc_us
from rose.events import Ledger
from rose.ledger import examine, layout
from rose.ledger.verify import CLOSING_WRITER
from rose.ledger.writer import LedgerWriter
from rose.pricing.closing import store
from rose.pricing.closing.close import user
from rose.pricing.closing.period import Period, hour_text
from rose.pricing.closing.records import INVOICED, Posting
from rose.pricing.invoices.invoice import Invoice
from rose.pricing.money import PricingError, format_money
from rose.pricing.table import Column, Table, columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Issued:
    """A final invoice that was written for `team`: [from_ns, to_ns), UTC, of a close, in nano-units of a currency.

    `overlaps` are the numbers of those that the team had been issued before for hours of it.
    """

    number: str
    team: str
    from_ns: int
    to_ns: int
    currency: str
    total_nano: int
    close_id: str
    close_sha256: str
    issued_us: int
    issued_by: str
    overlaps: tuple[str, ...] = ()

    @property
    def period(self) -> Period:
        return Period(self.from_ns, self.to_ns)

    def to_json(self) -> dict[str, Any]:
        """Plain values, times as text."""
        fields = dataclasses.asdict(self)
        period = {"from": utc(fields.pop("from_ns")), "to": utc(fields.pop("to_ns"))}
        return {**fields, "period": period, "issued_at": utc(fields.pop("issued_us") * 1000)}


def issued(root: Path) -> tuple[Issued, ...]:
    """Every invoice that was issued, in that order. Raises LedgerError."""
    events = examine.recorded(layout.check(root), CLOSING_WRITER, INVOICED)
    return tuple(Issued(**{**fields, "overlaps": tuple(fields["overlaps"])}) for fields in events)


def issue(
    root: Path, made: Sequence[Invoice], *, allow_overlap: bool = False, by: str | None = None
) -> tuple[Issued, ...]:
    """Put the final ones of some invoices on record, before anybody gets them; returns those that are new.

    One that is on record may be written again. Raises PricingError, with nothing on record, for a team that was issued
    another invoice of hours of the same period (unless `allow_overlap`), and for a number that was issued with another
    amount; LedgerError.
    """
    final = [invoice for invoice in made if invoice.final]
    if not final:
        return ()
    root = layout.check(root)
    with store.lock(root):
        known = {one.number: one for one in issued(root)}
        now_us, who = utc_us(), by or user()
        new = [_issued(invoice, known, now_us, who) for invoice in final if not _is_known(invoice, known)]
        doubled = [f"{one.number} of {', '.join(one.overlaps)}" for one in new if one.overlaps]
        if doubled and not allow_overlap:
            raise PricingError(
                f"hours of it were invoiced to the team before, {'; '.join(doubled)}: `rose invoice --list` has them. "
                "Send one of the two, or give --allow-overlap"
            )
        if new:
            with LedgerWriter.open(root, CLOSING_WRITER, layout.UPKEEP_RUN_ID) as log:
                for one in new:
                    detail = json.dumps(dataclasses.asdict(one))
                    event_id = f"invoice/{one.number}"
                    log.record(
                        Ledger(action=INVOICED, at_us=now_us, event_id=event_id, detail_json=detail), durable=True
                    )
    return tuple(new)


def faults(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """Invoices of a close that the ledger has otherwise, or not at all. Raises LedgerError."""
    closes = {(posting.close_id, posting.sha256) for posting in posted}
    for one in issued(root):
        if (one.close_id, one.close_sha256) not in closes:
            yield f"invoice {one.number} was issued of {one.close_id} with SHA-256 {one.close_sha256}: there is none"


def table(rows: Sequence[Issued]) -> Table:
    """The register for people."""
    names = columns("number", "team", "from", "to", "amount", "SHA-256 of the close", "issued", whole=("number",))
    overlaps = any(one.overlaps for one in rows)
    return Table(
        title="Invoices issued",
        view="amortized, with corrections, shared costs and credits",
        columns=(*names, *([Column("overlaps")] if overlaps else [])),
        rows=tuple(
            (
                one.number,
                one.team,
                hour_text(one.from_ns),
                hour_text(one.to_ns),
                format_money(one.total_nano, one.currency),
                one.close_sha256[:12],
                f"{utc(one.issued_us * 1000)[:16]}Z by {one.issued_by}",
                *([", ".join(one.overlaps)] if overlaps else []),
            )
            for one in rows
        ),
    )


def _is_known(invoice: Invoice, known: Mapping[str, Issued]) -> bool:
    if (before := known.get(invoice.number)) is None:
        return False
    if before.total_nano != invoice.total_nano:
        now, then = (format_money(one.total_nano, before.currency) for one in (invoice, before))
        raise PricingError(
            f"{invoice.number} was issued for {then} and comes to {now} now; `rose books verify` says what was changed"
        )
    return True


def _issued(invoice: Invoice, known: Mapping[str, Issued], now_us: int, who: str) -> Issued:
    assert invoice.close is not None
    return Issued(
        number=invoice.number,
        team=invoice.team,
        from_ns=invoice.period.from_ns,
        to_ns=invoice.period.to_ns,
        currency=invoice.stamp.currency,
        total_nano=invoice.total_nano,
        close_id=invoice.close.close_id,
        close_sha256=invoice.close.sha256,
        issued_us=now_us,
        issued_by=who,
        overlaps=tuple(
            one.number for one in known.values() if one.team == invoice.team and one.period.overlaps(invoice.period)
        ),
    )
