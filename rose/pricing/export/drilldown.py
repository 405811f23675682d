"""Drill-downs of a bill as tables of whole numbers, each of which sums to the bill or to a named part of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import polars as pl

from rose.pricing import charges
from rose.pricing.charges.sums import exact
from rose.pricing.charges.waste import CAUSE
from rose.pricing.export import prices
from rose.pricing.export.bill import Bill
from rose.pricing.figures import AMORTIZED, FULLY_LOADED
from rose.pricing.table import Column, Row, Table

#: The word for what has no value where a table is drilled down by one.
UNALLOCATED = "unallocated"
#: Columns of what teams bear of a close that was corrected.
CORRECTIONS, WITH_CORRECTIONS = "corrections", "amortized, with corrections"


_HOURS, _AMORTIZED = Column("device time", "hours"), Column("amortized", "money")


def tables(bill: Bill) -> list[Table]:
    """Every drill-down, in the order in which they are shown. Raises PriceBookError where a price is missing."""
    frame = bill.charges.frame
    loaded = charges.fully_load(frame) if bill.loaded is None else bill.loaded
    made = (
        _with_corrections(_by_team(frame, loaded), bill),
        _by_bucket_and_day(frame),
        _by_run(bill, loaded),
        _by_policy(frame),
        _waste(frame),
        _idle(frame),
        _invoiced(frame),
        _prices(bill),
        _corrections(bill),
    )
    return [dataclasses.replace(table, stamp=bill.stamp).with_total() for table in made]


def by_bucket(frame: pl.DataFrame) -> dict[str, tuple[int, int]]:
    """Nanoseconds and nano-dollars of each bucket, the dearest first."""
    summed = frame.group_by("bucket").agg(pl.col("ns").sum(), pl.col("cost_nano").sum())
    dearest = summed.sort(["cost_nano", "bucket"], descending=[True, False])
    return {bucket: (ns, nano) for bucket, ns, nano in dearest.iter_rows()}


def _grouped(frame: pl.DataFrame, by: Sequence[str | pl.Expr], *sums: str) -> tuple[Row, ...]:
    """Rows of the values of `by`, a null among them as "unallocated", with sums; in the order of `by`."""
    keys = [(pl.col(key) if isinstance(key, str) else key).cast(pl.String).fill_null(UNALLOCATED) for key in by]
    summed = frame.group_by(keys).agg(map(exact, sums))
    return tuple(summed.sort(summed.columns[: len(keys)]).iter_rows())


def _both_views(frame: pl.DataFrame, loaded: pl.DataFrame, key: str) -> tuple[Row, ...]:
    """Each value of `key` with its time, its amortized cost and its fully loaded cost; each cost sums to the bill."""
    amortized = {name: rest for name, *rest in _grouped(frame, [key], "ns", "cost_nano")}
    full: dict[str, int] = dict(_grouped(loaded, [key], "loaded_nano"))
    names = sorted(amortized.keys() | full.keys())
    return tuple((name, *amortized.get(name, (0, 0)), full.get(name, 0)) for name in names)


def _by_team(frame: pl.DataFrame, loaded: pl.DataFrame) -> Table:
    return Table(
        name="By team",
        title="Who pays",
        view=f"{AMORTIZED} and {FULLY_LOADED}",
        notes=(
            "By the tags of each run: `team` for rollouts, training and what serves them, `serving_team` for the "
            "rest. Unallocated: the run has no such tag. Fully loaded, a team also bears the idle time of the devices "
            "it worked on. Each column of dollars sums to the bill.",
        ),
        columns=(Column("team"), _HOURS, _AMORTIZED, Column("fully loaded", "money")),
        rows=_both_views(frame, loaded, "team"),
    )


def _with_corrections(by_team: Table, bill: Bill) -> Table:
    """The same with what was posted since, and teams that only that has; as it is where nothing was."""
    if not bill.corrections:
        return by_team
    posted: dict[str, int] = dict(_grouped(pl.concat([part.frame for part in bill.corrections]), ["team"], "cost_nano"))
    rows = {row[0]: row for row in by_team.rows}
    rows = {team: rows.get(team, (team, 0, 0, 0)) for team in sorted(rows.keys() | posted.keys())}
    names = (CORRECTIONS, WITH_CORRECTIONS)
    return dataclasses.replace(
        by_team,
        notes=(*by_team.notes, "What was posted since the close stands beside it."),
        columns=(*by_team.columns, *(Column(name, _AMORTIZED.kind) for name in names)),
        rows=tuple((*row, posted.get(team, 0), row[2] + posted.get(team, 0)) for team, row in rows.items()),
    )


def _by_bucket_and_day(frame: pl.DataFrame) -> Table:
    day = pl.col("hour").dt.strftime("%Y-%m-%d").alias("day")
    return Table(
        name="By bucket and day",
        title="What the devices did, by UTC day",
        view=AMORTIZED,
        notes=("Sums to the bill.",),
        columns=(Column("day"), Column("bucket"), _HOURS, _AMORTIZED),
        rows=_grouped(frame, [day, "bucket"], "ns", "cost_nano"),
    )


def _by_run(bill: Bill, loaded: pl.DataFrame) -> Table:
    def name(run_id: str) -> str:
        return bill.runs[run_id].name if run_id in bill.runs else ""

    return Table(
        name="By run",
        title="What each run cost",
        view=f"{AMORTIZED} and {FULLY_LOADED}",
        notes=("Each column of dollars sums to the bill.",),
        columns=(Column("run"), Column("name"), _HOURS, _AMORTIZED, Column("fully loaded", "money")),
        rows=tuple(
            (run_id, name(run_id), *rest) for run_id, *rest in _both_views(bill.charges.frame, loaded, "run_id")
        ),
    )


def _by_policy(frame: pl.DataFrame) -> Table:
    return Table(
        name="By policy version and task",
        title="Rollouts by policy version and task",
        view=AMORTIZED,
        notes=(
            "Sums to the bucket `rollout`. Time is divided by the tokens made in it. Unallocated: no turn said which.",
        ),
        columns=(Column("policy version"), Column("task"), Column("output tokens", "count"), _HOURS, _AMORTIZED),
        rows=_by_number(_grouped(_rollout(frame), ["policy_version", "task"], "tokens", "ns", "cost_nano")),
    )


def _by_number(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """In the order of a number in the first column, what is none at the end: as text, 10 would come before 9."""
    return tuple(sorted(rows, key=lambda row: (not row[0].isdecimal(), row[0].zfill(20), row[1])))


def _rollout(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("bucket") == "rollout")


def _waste(frame: pl.DataFrame) -> Table:
    fate = pl.col("fate")
    return Table(
        name="Waste by cause",
        title="Rollout time that came to nothing, and why",
        view=AMORTIZED,
        notes=(
            "Sums to the bucket `rollout`. Wasted is what was stale, lost or made again; a rejected answer is "
            "not: the trainer learns from it.",
        ),
        columns=(Column("cause"), Column("fate"), Column("output tokens", "count"), _HOURS, _AMORTIZED),
        rows=_grouped(_rollout(frame), [CAUSE, fate], "tokens", "ns", "cost_nano"),
    )


def _idle(frame: pl.DataFrame) -> Table:
    spare = frame.filter(pl.col("bucket").is_in(["idle", "unaccounted"]))
    return Table(
        name="Idle",
        title="Time that was paid for and not used",
        view=AMORTIZED,
        notes=(
            "Sums to the buckets `idle` and `unaccounted`. Could have been lent: on a serving device, in no lease. "
            "Leased, not used: lent to rollouts, which had nothing to do there. "
            "Unaccounted: no slice reports the time.",
        ),
        columns=(Column("bucket"), Column("cause"), Column("pool"), Column("device class"), _HOURS, _AMORTIZED),
        rows=_grouped(spare, ["bucket", "cause", "pool", "device_class"], "ns", "cost_nano"),
    )


def _invoiced(frame: pl.DataFrame) -> Table:
    beside = frame.filter(pl.col("kind") != "capacity")
    route = pl.col("route").fill_null("").alias("route")
    sums = _grouped(beside, ["kind", route, "team"], "bytes", "energy_mw_ns", "cost_nano")
    return Table(
        name="Transfer and energy",
        title="What is billed beside device time",
        view=AMORTIZED,
        notes=(
            "Sums to the buckets `transfer` and `energy`. Energy is here only where it was metered and the price of "
            "the device does not hold it.",
        ),
        columns=(
            Column("kind"),
            Column("route"),
            Column("team"),
            Column("GB", "gb"),
            Column("kWh", "kwh"),
            _AMORTIZED,
        ),
        # Bytes of energy, and energy of what was sent, are not 0: there is no such thing.
        rows=tuple(
            (kind, *place, sent if kind == "transfer" else None, energy if kind == "energy" else None, cost)
            for kind, *place, sent, energy, cost in sums
        ),
    )


def _prices(bill: Bill) -> Table:
    used: Mapping[str, prices.PriceUsed] = {price.name: price for price in prices.used(bill.charges)}
    return Table(
        name="Prices used",
        title=f"Prices of {bill.book.name} {bill.book.version} that the charges were made with",
        view=AMORTIZED,
        notes=("Dollars for a unit. A kWh is one that a device drew: tariff times PUE.",),
        columns=(
            Column("price"),
            Column("USD", "price"),
            Column("for each"),
            Column("commitment"),
            Column("from"),
            Column("until"),
            Column("source"),
            Column("source's date"),
        ),
        rows=tuple(
            (
                name,
                str(price.usd),
                price.unit,
                price.commitment or "",
                _day(price.valid_from),
                _day(price.valid_to),
                price.source,
                str(price.source_date),
            )
            for name, price in sorted(used.items())
        ),
    )


def _day(day: object) -> str:
    return "" if day is None else str(day)


def _corrections(bill: Bill) -> Table:
    day = pl.col("hour").dt.strftime("%Y-%m-%d").alias("day")
    rows = [
        (str(part.invoice_id), part.reason or "", *row)
        for part in bill.corrections
        for row in _grouped(part.frame, [day, "bucket", "team"], "ns", "cost_nano")
    ]
    return Table(
        name="Corrections",
        title="What was posted after the close",
        view=AMORTIZED,
        notes=(
            "Signed: what each changes the closed charges by, at the day that was charged. Of the other tables only "
            "`By team` has them."
            if bill.corrections
            else "None."
            if bill.close_id
            else "The period is not closed, so nothing can be posted to it.",
        ),
        columns=(
            Column("posting"),
            Column("reason"),
            Column("day charged"),
            Column("bucket"),
            Column("team"),
            _HOURS,
            _AMORTIZED,
        ),
        rows=tuple(rows),
    )
