"""What whoever sizes the fleet decided about its devices because of lending.

A serving device was *kept* where it would have been given back to its owner, had it not been lent; a dedicated one was
*let go* where it was given up because there was borrowing. The runtime sees neither: both are recorded in the ledger
from a CSV file, `record`, and spans of kept devices can be given for once, `read`. Times are UTC, such as
2026-06-01T00:00:00Z, and `to` is the first instant after a span.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from rose.events import Provenance, ScaleDown
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.pricing.money import PricingError

COLUMNS = ("device_id", "from", "to")
#: Of a file of decisions; only the last may be empty.
DECISION_COLUMNS = ("device_id", "device_class", "decision", "from", "to", "decided_by", "reason")
#: Name of the ledger's writer of decisions.
WRITER = "scale-down"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """[from_ns, to_ns) of a device, UTC nanoseconds."""

    device_id: str
    from_ns: int
    to_ns: int


def read(path: Path) -> tuple[Span, ...]:
    """Spans of a file, in order. Raises PricingError, naming file and line, for one that cannot be used."""
    return check((_span(path, number, line) for number, line in _lines(path, COLUMNS)), str(path))


def decisions(path: Path) -> tuple[ScaleDown, ...]:
    """Decisions of a file, in its order. Raises PricingError, naming file and line, for one that cannot be used."""
    made = []
    for number, line in _lines(path, DECISION_COLUMNS):
        values = {name: (line.get(name) or "").strip() for name in DECISION_COLUMNS}
        if None in line or not all(values[name] for name in DECISION_COLUMNS[:-1]):
            raise PricingError(f"{path}: line {number} must have a value in each of {', '.join(DECISION_COLUMNS[:-1])}")
        if values["decision"] not in ("kept", "let_go"):
            raise PricingError(f"{path}: line {number}: decision must be kept or let_go, got {values['decision']!r}")
        span = _span(path, number, {name: values[name] for name in COLUMNS})
        made.append(
            ScaleDown(
                device_id=span.device_id,
                t0_ns=span.from_ns,
                t1_ns=span.to_ns,
                device_class=values["device_class"],
                decision="kept" if values["decision"] == "kept" else "let_go",
                decided_by=values["decided_by"],
                reason=values["reason"] or None,
                event_id=hashlib.sha256("/".join(values.values()).encode()).hexdigest(),
            )
        )
    check((Span(str(one.device_id), one.t0_ns, one.t1_ns) for one in made), str(path))
    return tuple(made)


def record(root: Path, run_id: str, provenance: Provenance, made: Iterable[ScaleDown]) -> None:
    """Record decisions in the ledger at `root`; one that is recorded again counts once.

    Raises LedgerError, and PricingError, with nothing recorded, for one that overlaps another of its device, or names
    a class that the device, where the ledger knows it, never had.
    """
    new = {one.event_id: one for one in made}
    with LedgerWriter.open(root, WRITER, run_id, provenance) as ledger:
        with closing(catalog.connect(root)) as connection:
            before = connection.execute(
                "SELECT event_id, device_id, t0_ns, t1_ns FROM scale_down WHERE run_id = $run_id", {"run_id": run_id}
            ).fetchall()
            classes = connection.execute(
                "SELECT device_id, list(DISTINCT device_class ORDER BY device_class) FROM tenure "
                "WHERE provenance = $provenance GROUP BY device_id",
                {"provenance": provenance},
            ).fetchall()
        for event_id, *_ in before:
            new.pop(event_id, None)
        _refuse_other_classes(new.values(), dict(classes))
        _refuse_overlaps(new.values(), [Span(*span) for _, *span in before], f"the decisions of run {run_id!r}")
        for one in new.values():
            ledger.record(one)


def recorded(rows: Iterable[Mapping[str, Any]]) -> tuple[Span, ...]:
    """When devices were kept, of rows of `scale_downs`, in order; time that several rows name is in one span."""
    kept: list[Span] = []
    for span in sorted(Span(row["device_id"], row["t0_ns"], row["t1_ns"]) for row in rows if row["decision"] == "kept"):
        if kept and kept[-1].device_id == span.device_id and span.from_ns <= kept[-1].to_ns:
            kept[-1] = Span(span.device_id, kept[-1].from_ns, max(kept[-1].to_ns, span.to_ns))
        else:
            kept.append(span)
    return tuple(kept)


def check(spans: Iterable[Span], where: str) -> tuple[Span, ...]:
    """The spans in order. Raises PricingError for two of one device that overlap: that time would be charged twice."""
    ordered = tuple(sorted(spans))
    for one, other in pairwise(ordered):
        if one.device_id == other.device_id and other.from_ns < one.to_ns:
            raise PricingError(
                f"{where}: two spans of device {one.device_id!r} overlap; its time would be charged twice"
            )
    return ordered


def _refuse_other_classes(new: Iterable[ScaleDown], classes: Mapping[str, Sequence[str]]) -> None:
    for one in new:
        known = classes.get(str(one.device_id), [one.device_class])
        if one.device_class not in known:
            raise PricingError(
                f"device_class {one.device_class!r} is not what device {one.device_id!r} is in the ledger: write "
                f"{' or '.join(known)}, by whose price its time counts"
            )


def _refuse_overlaps(new: Iterable[ScaleDown], before: Sequence[Span], where: str) -> None:
    """What overlaps among those before was recorded by others, and keeps nobody from recording more."""
    for one in new:
        for other in before:
            if other.device_id == one.device_id and one.t0_ns < other.to_ns and other.from_ns < one.t1_ns:
                raise PricingError(
                    f"{where}: device {one.device_id!r} has one already from {_utc(other.from_ns)} to "
                    f"{_utc(other.to_ns)}, which overlaps {_utc(one.t0_ns)} to {_utc(one.t1_ns)}; record only time "
                    f"outside it"
                )


def _utc(ns: int) -> str:
    return f"{(_EPOCH + timedelta(microseconds=ns // 1000)).replace(tzinfo=None).isoformat()}Z"


def _lines(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str | None, str | None]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.DictReader(file)
            if tuple(lines.fieldnames or ()) != columns:
                raise PricingError(f"{path}: line 1 must be `{','.join(columns)}`, got {lines.fieldnames}")
            for line in lines:
                yield lines.line_num, dict(line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PricingError(
            f"cannot read {path}: {error}. Give a CSV file with the columns {', '.join(columns)}."
        ) from None


def _span(path: Path, line: int, given: dict[str | None, str | None]) -> Span:
    values = {name: (given.get(name) or "").strip() for name in COLUMNS}
    if None in given or not all(values.values()):
        raise PricingError(f"{path}: line {line} must have a value in each of {', '.join(COLUMNS)}, and no more")
    from_ns, to_ns = (_utc_ns(path, line, name, values[name]) for name in ("from", "to"))
    if to_ns <= from_ns:
        raise PricingError(f"{path}: line {line}: to {values['to']} must be after from {values['from']}")
    return Span(values["device_id"], from_ns, to_ns)


def _utc_ns(path: Path, line: int, name: str, value: str) -> int:
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise PricingError(
            f"{path}: line {line}: {name} must be a time such as 2026-06-01T00:00:00Z, got {value!r}"
        ) from None
    if at.tzinfo is None:
        raise PricingError(f"{path}: line {line}: {name} {value!r} has no time zone; write {value}Z for UTC")
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000
