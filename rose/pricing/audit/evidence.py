"""The ledger's events of one device-hour, and the files that contain them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from rose.events import BUCKETS
from rose.ledger.files import examine, layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.verify import Report
from rose.pricing.charges.pricing import charged_to
from rose.pricing.charges.state import cut
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.period import naive
from rose.pricing.query import rows, set_variables

Row = dict[str, Any]
Unit = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceHour:
    """One UTC hour of a device of a run. A device that several runs share belongs to the fleet's run."""

    run_id: str
    provenance: str
    device_id: str
    hour_ns: int

    def rows_of(self, frame: pl.DataFrame) -> pl.DataFrame:
        own = pl.col("hour") == naive(self.hour_ns), pl.col("device_id") == self.device_id
        return frame.filter(charged_to(self.run_id), *own)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The events of a device-hour. For a closed hour, events after the close are left out, and `late` counts them."""

    slices: tuple[Row, ...]
    tokens: tuple[Row, ...]
    syncs: tuple[Row, ...]
    readings: tuple[Row, ...]
    late: int
    units: tuple[tuple[int, Unit], ...] = ()  # (from, unit), UTC nanoseconds.

    def of_unit(self, unit: Unit) -> Evidence:
        def own(at_ns: int) -> bool:
            # Events before the device joined belong to its first unit.
            was = [one for since_ns, one in self.units if since_ns <= at_ns] or [one for _, one in self.units[:1]]
            return was[-1:] == [unit]

        return replace(
            self,
            slices=tuple(row for row in self.slices if own(row["t0_ns"])),
            tokens=tuple(row for row in self.tokens if own(1000 * row["at_us"])),
            readings=tuple(row for row in self.readings if own(row["t0_ns"])),
        )

    def slices_within(self, spans: Sequence[tuple[int, int]]) -> tuple[Row, ...]:
        return tuple(row for row in self.slices if any(row["t0_ns"] < t1 and row["t1_ns"] > t0 for t0, t1 in spans))


@dataclass(frozen=True, slots=True)
class WriterEvents:
    """The events of one writer. `holds`: whether the writer's hash chain is intact, or None if files are archived."""

    writer: str
    first_seq: int
    last_seq: int
    events: int
    files: tuple[str, ...]
    holds: bool | None


def gather(ledger: Ledger, device_hour: DeviceHour, mark: Mapping[str, tuple[int, str]] | None = None) -> Evidence:
    """Return a device-hour's events. `mark` has, for each writer, the seq of the last event that counts. If `mark` is
    None, all events count. Raises LedgerError."""
    with ledger.connect() as connection:
        scope = asdict(device_hour)
        hour_ns = scope.pop("hour_ns")
        set_variables(connection, **scope, from_ns=hour_ns, to_ns=hour_ns + NS_PER_HOUR)
        names = ("hour_slices", "hour_tokens", "hour_invoiced")
        by_kind = {name: rows(connection, f"closing/{name}") for name in names}
        units = rows(connection, "closing/device_units")

    def known(writer: str | None, seq: int | None) -> bool:
        if mark is None:
            return True
        return writer is not None and seq is not None and writer in mark and seq <= mark[writer][0]

    late = sum(not known(row["writer"], row["seq"]) for events in by_kind.values() for row in events)
    kept = {name: [row for row in events if known(row["writer"], row["seq"])] for name, events in by_kind.items()}
    for row in kept["hour_tokens"]:
        if not known(row["ended_writer"], row["ended_seq"]):
            row["task"] = None
    return Evidence(
        slices=tuple(_in_hour(row, hour_ns) for row in kept["hour_slices"]),
        tokens=tuple(kept["hour_tokens"]),
        syncs=tuple(row for row in kept["hour_invoiced"] if row["kind"] == "sync"),
        readings=tuple(_reading(row, hour_ns) for row in kept["hour_invoiced"] if row["kind"] == "power"),
        late=late,
        units=tuple((row["joined_ns"], (row["hardware_id"], row["pool"], row["device_class"])) for row in units),
    )


def spans(ledger: Ledger, events: Iterable[Row], verified: Report) -> Iterator[WriterEvents]:
    """Yield the seq range and files of each writer in `events`. `verified` names broken chains. Raises LedgerError."""
    by_writer: dict[str, list[int]] = {}
    for row in events:
        by_writer.setdefault(row["writer"], []).append(row["seq"])
    bad = {chain.writer for chain in verified.writers if chain.problems}
    for writer, seqs in sorted(by_writer.items()):
        files, archived = _files(ledger, writer, sorted(seqs))
        holds = None if archived else writer not in bad
        yield WriterEvents(writer, min(seqs), max(seqs), len(seqs), tuple(files), holds)


def _in_hour(row: Row, hour_ns: int) -> Row:
    part = dict(cut(row))[hour_ns // NS_PER_HOUR]
    keys = ("writer", "seq", "lease_id", "rollout_run_id", "train_run_id", "t0_ns", "t1_ns")
    return {key: row[key] for key in keys} | {bucket: part[bucket] for bucket in BUCKETS}


def _reading(row: Row, hour_ns: int) -> Row:
    ns = min(row["t1_ns"], hour_ns + NS_PER_HOUR) - max(row["t0_ns"], hour_ns)
    return {key: row[key] for key in ("writer", "seq", "t0_ns", "t1_ns", "power_mw")} | {
        "energy_mw_ns": row["power_mw"] * ns
    }


def _files(ledger: Ledger, writer: str, seqs: list[int]) -> tuple[list[str], bool]:
    names, archived = [], False
    for part in layout.chain(ledger.folder, writer):
        if part.state == "live":
            folder = ledger.folder / part.folder
            if segments.end_seq(ledger.folder, part) <= seqs[0]:
                continue
            for name in segments.segment_names(folder):
                header = segments.read_header((folder / name).read_bytes())
                if any(header.first_seq <= seq <= header.last_seq for seq in seqs):
                    names.append(f"{part.folder}/{name}")
            continue
        manifest = examine.manifest((ledger.folder / part.manifest).read_bytes()).said
        if not manifest:
            raise LedgerError(f"{part.manifest} is damaged; `rose ledger verify` says more")
        if any(manifest["first_seq"] <= seq <= manifest["last_seq"] for seq in seqs):
            archived |= part.state == "archived"
            names.append(part.manifest if part.state == "archived" else f"{part.stem}.parquet")
    return names, archived
