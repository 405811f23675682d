"""Explains a device-hour's charge: computes each step from price book and events again, and compares the result."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from rose.clock import utc
from rose.errors import did_you_mean
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.audit.evidence import DeviceHour, Row, Unit, WriterEvents, gather, spans
from rose.pricing.audit.steps import Step, capacity, energy, held, transfer
from rose.pricing.charges import Stay
from rose.pricing.charges.pricing import charged_to, total
from rose.pricing.closing import store
from rose.pricing.closing.bill import Bill, of_close
from rose.pricing.closing.store import postings
from rose.pricing.figures import AMORTIZED, BookFacts, Figure, Stamp
from rose.pricing.money import NS_PER_HOUR, PricingError, QuestionError, format_usd
from rose.pricing.period import hour_text, naive, nanoseconds, of_hours
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.table import Column, Element, Table

_SHOWN = 8
_SUMS_SHOWN = 12  # Sums of a step that are shown; others are counted.


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargeQuestion:
    hour_ns: int | None = None
    run_id: str | None = None
    device_id: str | None = None
    bucket: str | None = None
    lease_id: str | None = None
    team: str | None = None
    task: str | None = None
    fate: str | None = None
    policy_version: int | None = None

    def rows_of(self, frame: pl.DataFrame) -> pl.DataFrame:
        wanted = dataclasses.asdict(self)
        hour_ns, run_id = wanted.pop("hour_ns"), wanted.pop("run_id")
        chosen = [pl.col(name) == value for name, value in wanted.items() if value is not None]
        if run_id is not None:
            chosen.append(charged_to(run_id))
        if hour_ns is not None:
            chosen.append(pl.col("hour") == naive(hour_ns))
        return frame.filter(*chosen)

    def none_like_it(self, frame: pl.DataFrame) -> str:
        """Return why no row matches. If a chosen value is in no row, the text names the first such value. Otherwise it
        says that no row has all the values."""
        for name in ("device_id", "bucket", "lease_id", "team", "task", "fate", "policy_version"):
            value = getattr(self, name)
            values = frame[name].drop_nulls().unique().sort().to_list()
            if value is not None and value not in values:
                option = name.removesuffix("_id").removeprefix("policy_")
                return f"no charge has {option} {value!r}{did_you_mean(str(value), [*map(str, values)])}"
        return "no charge has all these values; `rose cost --by run --by device --by bucket` lists the charges"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    title: str
    device_hour: DeviceHour
    amount: Figure
    rows: tuple[Row, ...]
    steps: tuple[Step, ...]
    spans: tuple[WriterEvents, ...]
    events: Mapping[str, tuple[Row, ...]]
    notes: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        sums = [f"{step.title}: {added.text}" for step in self.steps for added in step.sums if not added.ok]
        chains = [
            f"the hash chain of writer {span.writer!r} is broken: run `rose ledger verify`"
            for span in self.spans
            if span.holds is False
        ]
        return sums + chains

    def to_json(self, with_events: bool) -> dict[str, Any]:
        return {
            "title": self.title,
            "run_id": self.device_hour.run_id,
            "device_id": self.device_hour.device_id,
            "hour": utc(self.device_hour.hour_ns),
            **self.amount.stamp.to_json(),
            "amount": self.amount.to_json(),
            "rows": list(self.rows),
            "steps": [step.to_json() for step in self.steps],
            "ledger": [dataclasses.asdict(span) for span in self.spans],
            "events": {kind: list(rows) for kind, rows in self.events.items()} if with_events else None,
            "notes": list(self.notes),
            "faults": self.faults,
        }


def explain(ledger: Ledger, question: ChargeQuestion, book: PriceBook, *, provenance: str | None = None) -> Explanation:
    """Explain a charge at the prices of `book`. Raises PricingError unless one device-hour matches, and LedgerError."""
    hour_ns = question.hour_ns
    hour = None if hour_ns is None else of_hours(hour_ns, hour_ns)
    priced = charges.price(ledger, book, hour, run_id=question.run_id, provenance=provenance)
    device_hour, rows = _one(question, priced.frame)
    notes = [
        f"this hour is closed in {close_id}; `--close {close_id}` explains the booked figure"
        for close_id, posted in postings(ledger).items()
        if posted[0].provenance == device_hour.provenance and posted[0].from_ns <= device_hour.hour_ns < posted[0].to_ns
    ]
    alone = f"{device_hour.run_id}/{device_hour.device_id}"
    if question.run_id is not None and (priced.fleet is not None or (rows["hardware_id"] != alone).any()):
        hour_ns = device_hour.hour_ns  # Other runs may have held the device in that hour.
        priced = charges.price(ledger, book, of_hours(hour_ns, hour_ns), provenance=device_hour.provenance)
    title, verified = "as the ledger is now", priced.verified
    return _chain(ledger, title, device_hour, rows, priced.frame, priced.stays, book, verified, None, notes)


def explain_closed(ledger: Ledger, question: ChargeQuestion, close_id: str) -> list[Explanation]:
    """Explain a charge as closed and, if corrected, as last corrected. Raises errors of `explain` and `of_close`."""
    closed = of_close(ledger, close_id)
    whole, charged = closed.frame.drop("closed"), closed.parts[0].frame
    device_hour, _ = _one(question, whole if question.rows_of(charged).is_empty() else charged)
    first, *later = closed.posted
    explanations = []
    for posting, frame in [(first, charged), *((last, whole) for last in later[-1:])]:
        rows = question.rows_of(device_hour.rows_of(frame))
        title = f"as it was closed at {utc(posting.posted_ns)}"
        notes = []
        if posting.number:
            title = f"as restated by correction {posting.number} at {utc(posting.posted_ns)}: {posting.reason}"
            notes = [_corrections(closed, question, device_hour)]
        book = store.book_of(ledger, posting)
        stays = None if posting.number else store.stays(ledger, posting)
        explanations.append(
            _chain(ledger, title, device_hour, rows, frame, stays, book, posting.verified, posting.watermark, notes)
        )
    return explanations


def _one(question: ChargeQuestion, frame: pl.DataFrame) -> tuple[DeviceHour, pl.DataFrame]:
    rows = question.rows_of(frame)
    if rows.is_empty():
        raise QuestionError(question.none_like_it(frame))
    keys = ("fleet_run_id", "provenance", "device_id", "hour")
    hours = rows.group_by(keys).agg(pl.col("cost_nano").sum())
    hours = hours.sort(["cost_nano", *keys], descending=[True, False, False, False, False])
    if hours.height > 1:
        listed = "\n".join(
            f"  --run {row['fleet_run_id']} --device {row['device_id']} --hour {row['hour']:%Y-%m-%dT%H}: "
            f"{format_usd(row['cost_nano'])}"
            for row in hours.head(_SHOWN).iter_rows(named=True)
        )
        raise PricingError(f"{hours.height:,} device-hours match; choose one of them. The largest:\n{listed}")
    ((run_id, own_provenance, device_id, hour, _),) = hours.iter_rows()
    return DeviceHour(run_id=run_id, provenance=own_provenance, device_id=device_id, hour_ns=nanoseconds(hour)), rows


def _chain(
    ledger: Ledger,
    title: str,
    device_hour: DeviceHour,
    rows: pl.DataFrame,
    frame: pl.DataFrame,
    stays: Sequence[Stay] | None,
    book: PriceBook,
    verified: bool,
    mark: Mapping[str, tuple[int, str]] | None,
    notes: list[str],
) -> Explanation:
    evidence, hour_ns = gather(ledger, device_hour, mark), device_hour.hour_ns
    whole = device_hour.rows_of(frame)
    steps: list[Step] = []
    everybodys = frame.filter(
        pl.col("hour") == naive(hour_ns),
        pl.col("provenance") == device_hour.provenance,
        pl.col("hardware_id").is_in(whole["hardware_id"].unique().to_list()),
    )
    columns = ("hardware_id", "pool", "device_class")  # A device that changed one within the hour has a price for each.
    several = whole.select(columns).n_unique() > 1
    for unit in rows.filter(kind="capacity").select(columns).unique().sort(pl.all()).rows():
        tenures = [stay for stay in stays or () if stay.hardware_id == unit[0]]
        holder = (device_hour.run_id, device_hour.device_id, *unit[1:])
        own = [(stay.t0_ns, stay.t1_ns) for stay in tenures if stay.holder == holder]
        charged, question_rows, lot = (_of_unit(frame, "capacity", unit) for frame in (whole, rows, everybodys))
        unit_evidence = evidence.of_unit(unit) if several else evidence
        if stays is not None:
            unit_evidence = dataclasses.replace(unit_evidence, slices=evidence.slices_within(own))
        part = held(tenures, hour_ns).get(holder)
        steps += capacity(charged, question_rows, book, hour_ns, unit_evidence, lot, part)
    if "transfer" in rows["kind"]:
        charged, question_rows = (frame.filter(kind="transfer") for frame in (whole, rows))
        steps += transfer(charged, question_rows, book, hour_ns, evidence)
    for unit in rows.filter(kind="energy").select(columns).unique().sort(pl.all()).rows():
        charged = _of_unit(whole, "energy", unit)
        others = everybodys.filter(kind="energy", hardware_id=unit[0])
        shared = not others.join(charged, on=("fleet_run_id", "device_id"), how="anti").is_empty()
        unit_evidence = evidence.of_unit(unit) if several else evidence
        steps += energy(charged, book, hour_ns, unit_evidence, shared=shared)
    kinds, leases = set(rows["kind"]), set(rows.filter(pl.col("bucket") == "rollout")["lease_id"])
    events = {
        "slices": evidence.slices if "capacity" in kinds else (),
        "tokens": tuple(row for row in evidence.tokens if row["lease_id"] in leases),
        "syncs": evidence.syncs if "transfer" in kinds else (),
        "readings": evidence.readings if "energy" in kinds else (),
    }
    stamp = Stamp(
        from_ns=hour_ns,
        to_ns=hour_ns + NS_PER_HOUR,
        provenance=device_hour.provenance,
        book=BookFacts.from_book(book),
        verified=verified,
    )
    if evidence.late:
        notes = [*notes, f"{evidence.late} events of the hour were recorded later and are not in this figure"]
    return Explanation(
        title=title,
        device_hour=device_hour,
        amount=Figure(value=total(rows), unit="nano_usd", view=AMORTIZED, stamp=stamp),
        rows=tuple({**row, "hour": utc(hour_ns)} for row in rows.iter_rows(named=True)),
        steps=tuple(steps),
        spans=tuple(spans(ledger, (row for kind in events.values() for row in kind), ledger.verify())),
        events=events,
        notes=tuple(notes),
    )


def _of_unit(frame: pl.DataFrame, kind: str, unit: Unit) -> pl.DataFrame:
    return frame.filter(kind=kind, hardware_id=unit[0], pool=unit[1], device_class=unit[2])


def _corrections(closed: Bill, question: ChargeQuestion, device_hour: DeviceHour) -> str:
    rows = [question.rows_of(device_hour.rows_of(part.frame)) for part in closed.parts]
    before, *nanos = map(total, rows)
    parts = [
        f"correction {posting.number}: {format_usd(nano)} ({posting.reason})"
        for posting, nano, corrected in zip(closed.posted[1:], nanos, rows[1:], strict=True)
        if not corrected.is_empty()
    ]
    after = format_usd(before + sum(nanos))
    return f"closed {format_usd(before)}; {'; '.join(parts) or 'no correction of it'}; restated {after}"


def elements(explained: Explanation, *, with_events: bool) -> Iterator[Element]:
    amount, device_hour = explained.amount, explained.device_hour
    yield f"{amount.text}, {explained.title}  [{amount.view}; {amount.stamp}]"
    hour, count = hour_text(device_hour.hour_ns), len(explained.rows)
    yield f"run {device_hour.run_id}, device {device_hour.device_id}, hour {hour}; {count} charges"
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
        holds = {True: "its hash chain holds", False: "ITS HASH CHAIN IS BROKEN", None: "archived"}[span.holds]
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
                cells = tuple(tuple(row.values()) for row in rows)
                yield Table(title=f"{kind}: {len(rows):,} events", columns=tuple(map(Column, rows[0])), rows=cells)
