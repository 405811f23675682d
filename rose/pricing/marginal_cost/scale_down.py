"""Records the decisions of a CSV file in the ledger. *Kept*: without lending, the serving device would have been given
back. *Let go*: the dedicated device was given up because of lending."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from rose.clock import utc
from rose.events import Provenance, ScaleDown
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.charges.allocation import Allocation, SharedTime
from rose.pricing.marginal_cost.terms import Row, Stretches
from rose.pricing.money import NS_PER_HOUR, PricingError
from rose.pricing.period import nanoseconds, without
from rose.pricing.price_books.pricebook import PriceBook

#: Columns of a file of decisions; only the last may be empty.
COLUMNS = ("device_id", "device_class", "decision", "from", "to", "decided_by", "reason")
WRITER = "scale-down"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The time [from_ns, to_ns) of a device, in UTC nanoseconds."""

    device_id: str
    from_ns: int
    to_ns: int


def decisions(path: Path) -> tuple[ScaleDown, ...]:
    """Return the decisions in a file. Raises PricingError, which names the file and the line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            if tuple(lines.fieldnames or ()) != COLUMNS:
                raise PricingError(f"{path}: line 1 must be `{','.join(COLUMNS)}`, got {lines.fieldnames}")
            read = [_decision(f"{path}: line {lines.line_num}", line) for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PricingError(f"cannot read {path}: {error}. Give a CSV file with columns {', '.join(COLUMNS)}.") from None
    for one, other in pairwise(sorted(Span(str(one.device_id), one.t0_ns, one.t1_ns) for one in read)):
        if one.device_id == other.device_id and other.from_ns < one.to_ns:
            raise PricingError(f"{path}: two spans of device {one.device_id!r} overlap; its time would count twice")
    return tuple(read)


def _decision(where: str, line: Mapping[str | None, str | None]) -> ScaleDown:
    values = {name: (line.get(name) or "").strip() for name in COLUMNS}
    if None in line or not all(values[name] for name in COLUMNS[:-1]):
        raise PricingError(f"{where} must have a value in each of {', '.join(COLUMNS[:-1])}; `reason` must be last")
    if values["decision"] not in ("kept", "let_go"):
        raise PricingError(f"{where}: `decision` must be kept or let_go, got {values['decision']!r}")
    from_ns, to_ns = (_utc_ns(where, name, values[name]) for name in ("from", "to"))
    if to_ns <= from_ns:
        raise PricingError(f"{where}: `to` {values['to']} must be after `from` {values['from']}")
    return ScaleDown(
        device_id=values["device_id"],
        t0_ns=from_ns,
        t1_ns=to_ns,
        device_class=values["device_class"],
        decision="kept" if values["decision"] == "kept" else "let_go",
        decided_by=values["decided_by"],
        reason=values["reason"] or None,
        event_id=hashlib.sha256("/".join(values.values()).encode()).hexdigest(),
    )


def _utc_ns(where: str, name: str, value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise PricingError(f"{where}: `{name}` must be a time such as 2026-06-01T00:00:00Z, got {value!r}") from None
    if at.tzinfo is None:
        raise PricingError(f"{where}: `{name}` {value!r} has no time zone; write {value}Z for UTC")
    return nanoseconds(at)


def record(ledger: Ledger, run_id: str, provenance: Provenance, decided: Iterable[ScaleDown]) -> None:
    """Record new decisions, all or none. Raises PricingError if they contradict the ledger, and LedgerError."""
    new = {one.event_id: one for one in decided}
    with LedgerWriter.open(ledger.folder, WRITER, run_id, provenance) as log:
        with closing(ledger.connect()) as connection:
            before = connection.execute(
                "SELECT event_id, device_id, t0_ns, t1_ns FROM scale_down WHERE run_id = $run_id", {"run_id": run_id}
            ).fetchall()
            query = "SELECT device_id, list(DISTINCT device_class ORDER BY device_class) FROM tenure "
            query += "WHERE provenance = $provenance GROUP BY device_id"
            classes = dict(connection.execute(query, {"provenance": provenance}).fetchall())
        for event_id, *_ in before:
            new.pop(event_id, None)
        for one in new.values():
            _refuse(one, classes.get(one.device_id), [Span(*span) for _, *span in before], run_id)
        for one in new.values():
            log.record(one)


def _refuse(one: ScaleDown, classes: Sequence[str] | None, before: Iterable[Span], run_id: str) -> None:
    if classes is not None and one.device_class not in classes:
        raise PricingError(
            f"device {one.device_id!r} is not of device_class {one.device_class!r} in the ledger: write "
            f"{' or '.join(classes)}, since its time is priced by the class in the ledger"
        )
    for span in before:
        if span.device_id == one.device_id and one.t0_ns < span.to_ns and span.from_ns < one.t1_ns:
            raise PricingError(
                f"run {run_id!r} has a decision on device {one.device_id!r} from {utc(span.from_ns)} to "
                f"{utc(span.to_ns)}, which overlaps {utc(one.t0_ns)} to {utc(one.t1_ns)}; record only the new time"
            )


def spans_of(decided: Iterable[Row], decision: str) -> list[tuple[Span, str]]:
    """Return (span, device class) for a `decision`. If spans of a device overlap, the earlier span gives the class."""
    spans: list[tuple[Span, str]] = []
    named = sorted(
        (Span(row["device_id"], row["t0_ns"], row["t1_ns"]), str(row["device_class"]))
        for row in decided
        if row["decision"] == decision
    )
    for span, device_class in named:
        last, last_class = spans[-1] if spans else (None, None)
        if last is None or last.device_id != span.device_id or last.to_ns < span.from_ns:
            spans.append((span, device_class))
        elif last_class == device_class:
            spans[-1] = (Span(span.device_id, last.from_ns, max(last.to_ns, span.to_ns)), device_class)
        elif last.to_ns < span.to_ns:
            spans.append((Span(span.device_id, last.to_ns, span.to_ns), device_class))
    return spans


def let_go_usd(decided: Iterable[Row], allocation: Allocation, book: PriceBook) -> Fraction:
    """Return the dollars saved in the run's period by letting devices go, from rows of `scale_downs`. A device saves
    nothing while it is in the fleet. Other time counts in whole units of `bought_in_hours`. Raises PriceBookError."""
    period_ns = allocation.period_ns
    tenures: dict[str, list[tuple[int, int]]] = {}
    for device in allocation.devices:
        tenures.setdefault(device.device_id, []).extend(device.stays_ns)
    usd = Fraction(0)
    # Another, dearer class would show savings that are not real.
    for span, device_class in spans_of((row for row in decided if row["known_class"]), "let_go"):
        within_ns = max(span.from_ns, period_ns[0]), min(span.to_ns, period_ns[1])
        for t0_ns, t1_ns in without(within_ns, tenures.get(span.device_id, ())):
            unit_hours = book.device_at(device_class, "rollout", t0_ns).bought_in_hours
            end_ns = Fraction(t1_ns)
            if unit_hours is not None:
                unit_ns = Fraction(unit_hours) * NS_PER_HOUR
                end_ns = t0_ns + (t1_ns - t0_ns) // unit_ns * unit_ns
            for start_ns, stop_ns in book.stretches(t0_ns, t1_ns):
                price = Fraction(book.device_at(device_class, "rollout", start_ns).usd_per_hour)
                usd += max(Fraction(0), min(end_ns, Fraction(stop_ns)) - start_ns) * price / NS_PER_HOUR
    return usd


def cut(spans: Iterable[Span], shared: Iterable[SharedTime]) -> list[tuple[Span, Fraction]]:
    """Cut spans at the ends of each hour that several runs shared. Return (piece, the run's share of the piece)."""
    hours: dict[str, dict[int, Fraction]] = {}
    for time in shared:
        hours.setdefault(time.device_id, {})[time.hour_ns] = time.part
    pieces = []
    for span in spans:
        at_ns = span.from_ns
        for hour_ns, part in sorted(hours.get(span.device_id, {}).items()):
            from_ns, to_ns = max(at_ns, hour_ns), min(span.to_ns, hour_ns + NS_PER_HOUR)
            if from_ns < to_ns:
                pieces += [(Span(span.device_id, at_ns, from_ns), Fraction(1))] if at_ns < from_ns else []
                pieces.append((Span(span.device_id, from_ns, to_ns), part))
                at_ns = to_ns
        pieces += [(Span(span.device_id, at_ns, span.to_ns), Fraction(1))] if at_ns < span.to_ns else []
    return pieces


def avoidable_usd(
    billed: Mapping[tuple[str, int], Fraction],
    kept: Iterable[Row],
    stretches: Stretches,
    gate: Sequence[Fraction],
    pieces: Sequence[tuple[Span, Fraction]],
) -> Fraction:
    """Return the amortized price of device time that exists only because of leases. `gate` has, for each stretch, the
    probability that the fleet would exist without leases. `billed` time has the weight 1 - gate. A row of `kept` has
    the weight gate * the run's share of the row's piece in `pieces`."""
    times_ns = defaultdict(Fraction, {key: (1 - gate[key[1]]) * ns for key, ns in billed.items()})
    for row in kept:
        share = gate[row["segment"]] * pieces[row["span"]][1]
        times_ns[row["device_class"], row["segment"]] += share * row["leased_ns"]
    return stretches.usd("serving", times_ns)
