"""Charges, computed from hourly sums and a price book: integers that sum exactly to the bill.

[D] For each device and UTC hour, provisioned time * rate is rounded once, half to even. This amount is split among
leases and buckets in proportion to nanoseconds. The part of rollout time is then split in proportion to tokens. Both
splits are by largest remainder. Prices change only at midnight UTC. A weight sync costs bytes * the route's price.
Metered energy costs kWh * PUE * tariff. For syncs and for energy, the sum of an hour is rounded once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import duckdb
import polars as pl

import sql
from rose.clock import utc
from rose.ledger.files import database
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing import query
from rose.pricing.charges import state
from rose.pricing.money import MW_NS_PER_KWH, NANO_USD_PER_USD, NS_PER_HOUR, NothingChargedError, PricingError
from rose.pricing.period import Period, nanoseconds
from rose.pricing.price_books.entries import tagging
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import records, rows, set_variables

_EVER = Period(0, 2**62 // NS_PER_HOUR * NS_PER_HOUR)
_BYTES_PER_GB = 10**9
_IN_64_BITS = ("cost_nano", "ns", "tokens", "bytes")  # Amounts of `Charges.frame` that are added up in 64 bits.
_BOUND = 2**63

_STAYS = """SELECT run_id, device_id, hardware_id, pool, device_class, t0_ns, t1_ns
    FROM in_period JOIN stay USING (unit) WHERE asked ORDER BY run_id, device_id, t0_ns"""
#: A run without a team is of the team that the price book tags the device with.
_TAG = """UPDATE stay SET
    tagged_team = tagged.team,
    team = CASE WHEN stay.team = 'unallocated' THEN tagged.team ELSE stay.team END,
    device_team = CASE WHEN device_team = 'unallocated' THEN tagged.team ELSE device_team END
    FROM tagged WHERE stay.unit = tagged.unit"""

_DEVICE = ("run_id", "fleet_run_id", "provenance", "device_id", "hardware_id", "pool", "device_class", "commitment")
_USE = ("lease_id", "kind", "bucket", "team", "policy_version", "task", "fate", "cause", "route")
DIMENSIONS: tuple[str, ...] = ("hour", *_DEVICE, *_USE)
AMOUNTS: tuple[str, ...] = ("ns", "tokens", "bytes", "energy_mw_ns", "cost_nano")
REFERENCES: tuple[str, ...] = ("writer", "first_seq", "last_seq")
COLUMNS: tuple[str, ...] = (*DIMENSIONS, *AMOUNTS, *REFERENCES)  # The columns of `Charges.frame`, in its order.
WORK: tuple[str, ...] = ("serving", "rollout", "train", "unaccounted")


@dataclass(frozen=True, slots=True)
class Stay:
    """A time in which a device was provisioned, [t0_ns, t1_ns) UTC. A shared device belongs to the fleet's run."""

    run_id: str
    device_id: str
    hardware_id: str
    pool: str
    device_class: str
    t0_ns: int
    t1_ns: int

    @property
    def holder(self) -> tuple[str, str, str, str]:
        return self.run_id, self.device_id, self.pool, self.device_class


@dataclass(frozen=True, kw_only=True, slots=True)
class Charges:
    """The charges of [from_ns, to_ns), UTC, of one provenance, at the prices of one price book.

    `frame` has the columns of COLUMNS. Its rows are in a fixed order.
    - `hour` is naive UTC. `run_id` is the charged run, and `fleet_run_id` is the run that owns device and lease.
    - `hardware_id` identifies the device across runs. If it was not recorded, it is `<run>/<device>`.
    - `kind` is `capacity` (device time), `transfer` (weight syncs) or `energy` (metered, not in the device price).
    - `bucket` is one of the seven buckets, `unaccounted`, `transfer` or `energy`.
    - `team` is the payer: the run's tag, or the price book's device tag. Headroom is charged to the device's team.
    - Rollout time is split by `policy_version`, `task`, `fate` and `cause`, in proportion to tokens.
    - Idle time has a `cause`, and a transfer has a `route`.
    - `cost_nano` is in amortized nano-dollars. `tokens` are generated tokens.
    - `writer`, `first_seq` and `last_seq` name the events behind the row, if a single writer wrote them."""

    frame: pl.DataFrame
    stays: tuple[Stay, ...]
    from_ns: int
    to_ns: int
    provenance: str
    verified: bool
    book: PriceBook
    #: Hours of devices that several runs held (sql/charges/75_shared_hours.sql); see `charges.allocation`.
    shared: pl.DataFrame = field(default_factory=pl.DataFrame)
    rl_run_id: str | None = None  # RL run that shares devices; `fleet` has all charges of these devices.
    fleet: pl.DataFrame | None = None

    def fully_loaded(self) -> pl.DataFrame:
        """Return the charges with the columns that `fully_load` adds. An RL run gets its part of shared idle time."""
        if self.fleet is None or self.rl_run_id is None:
            return fully_load(self.frame)
        return fully_load(self.fleet).filter(charged_to(self.rl_run_id))

    @property
    def total_nano(self) -> int:
        return total(self.frame)


def price(
    ledger: Ledger,
    book: PriceBook,
    period: Period | None = None,
    *,
    run_id: str | None = None,
    provenance: str | None = None,
) -> Charges:
    """Return the charges of a period, or all charges if `period` is None. A fleet's `run_id` includes its RL runs.
    Raises PriceBookError for a missing price. Raises PricingError for a ledger that does not verify, for a period that
    is partly archived or of several provenances, and for hardware with two classes at once."""
    verified = _verified(ledger)
    if run_id is None:
        refuse_archived_since(ledger, None if period is None else period.from_ns)
    question = book.sha256, period, run_id, provenance
    with state.current(ledger) as (connection, answers):
        charges: Charges | None = answers.get(question)
        if charges is None:
            charges = answers[question] = _price(connection, book, period, run_id, provenance)
    return replace(charges, verified=verified, book=book)


def _price(
    connection: duckdb.DuckDBPyConnection,
    book: PriceBook,
    period: Period | None,
    run_id: str | None,
    provenance: str | None,
) -> Charges:
    asked = period or _EVER
    set_variables(connection, run_id=run_id, from_ns=asked.from_ns, to_ns=asked.to_ns)
    _run(connection, "15_stays")
    chosen = _provenance(connection, provenance, period, run_id)
    _tag_devices(connection, book)
    stays = [Stay(*row) for row in connection.execute(_STAYS).fetchall()]
    _refuse_two_classes(connection)
    try:
        _bring_charges_up_to_date(connection, book)
    except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
        raise PricingError(
            f"an amount is too large or too precise to be kept exactly ({error}): use fewer decimals in tariff, "
            "PUE and rates, and give each device that draws more than 2.5 kW its own power meter"
        ) from error
    whole = _frame(connection)
    _refuse_too_large(whole)
    frame = whole if run_id is None else whole.filter(charged_to(run_id))
    if run_id is not None:
        stays = list(_own_stays(stays, run_id, frame))
    hours = [nanoseconds(hour) for hour in frame["hour"].unique()]
    begins = [stay.t0_ns for stay in stays] or hours
    ends = [stay.t1_ns for stay in stays] or [ns + NS_PER_HOUR for ns in hours]
    if not begins:
        raise _nothing(period, provenance, run_id)
    # Tokens, syncs and energy may be billed without device time.
    begins += [ns for ns in hours if ns + NS_PER_HOUR <= min(begins)]
    ends += [ns + NS_PER_HOUR for ns in hours if ns >= max(ends)]
    return Charges(
        frame=frame,
        stays=tuple(stays),
        from_ns=min(begins) if period is None else period.from_ns,
        to_ns=max(ends) if period is None else period.to_ns,
        provenance=chosen,
        verified=False,
        book=book,
        shared=connection.sql(sql.read("charges/75_shared_hours.sql")).pl(),
        rl_run_id=run_id if frame.height < whole.height else None,
        fleet=whole if frame.height < whole.height else None,
    )


def exact(amount: str) -> pl.Expr:
    """Return a column's sum in 128 bits, since metered energy exceeds 64 bits after 5 hours at 500 W."""
    return pl.col(amount).cast(pl.Int128).sum()


def total(frame: pl.DataFrame, amount: str = "cost_nano") -> int:
    return int(frame.select(exact(amount)).item())


def _refuse_too_large(frame: pl.DataFrame) -> None:
    for amount in _IN_64_BITS:
        size = int(frame[amount].cast(pl.Int128).abs().sum())
        if size >= _BOUND:
            raise PricingError(
                f"{amount} of the period comes to {size:,}, but sums are exact only below {_BOUND:,}: check the unit "
                "of the prices (`rose price`), or price a shorter period"
            )


def charged_to(run_id: str) -> pl.Expr:
    return pl.any_horizontal(pl.col("run_id", "fleet_run_id") == run_id)


def fully_load(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the charges with `work`, one of WORK, and `loaded_nano`, the fully loaded cost.

    For each device and day, `loaded_nano` has the same sum as `cost_nano`. Sync, activation and transfer count as
    rollout, and headroom as serving. Idle time and energy are divided among the device's work in proportion to cost.
    If the device did no work on that day, they are charged to the work that its pool is for."""
    with database.empty() as connection:
        connection.register("charge", frame)
        loaded: pl.DataFrame = connection.sql(sql.read("charges/90_fully_load.sql")).pl()
    return loaded


def _run(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    connection.execute(sql.read(f"charges/{name}.sql"))


def _provenance(
    connection: duckdb.DuckDBPyConnection, chosen: str | None, period: Period | None, run_id: str | None
) -> str:
    present = [name for (name,) in connection.execute(sql.read("charges/20_provenances.sql")).fetchall()]
    if chosen is not None:
        present = [name for name in present if name == chosen]
    if not present:
        raise _nothing(period, chosen, run_id)
    if len(present) > 1:
        raise PricingError(
            f"the period mixes events of different provenance ({', '.join(present)}); no figure may combine "
            "them: choose one"
        )
    set_variables(connection, provenance=present[0])
    connection.execute("DELETE FROM stay WHERE provenance <> $provenance", {"provenance": present[0]})
    connection.execute("DELETE FROM in_period WHERE unit NOT IN (SELECT unit FROM stay)")
    return str(present[0])


def _nothing(period: Period | None, chosen: str | None, run_id: str | None) -> NothingChargedError:
    begins, ends = ("the beginning", "now") if period is None else (utc(period.from_ns), utc(period.to_ns))
    named = (f" with provenance {chosen!r}" if chosen else "") + (f" of run {run_id}" if run_id else "")
    return NothingChargedError(
        f"the period from {begins} to {ends} has no provisioned device time{named}, so "
        "nothing can be priced; it needs a device that joined and reported at least one slice"
    )


def _tag_devices(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> None:
    if not book.device_tag:
        return
    tags = tagging(book.device_tag)
    devices = "SELECT unit, device_id, hardware_id, pool, device_class FROM stay WHERE asked"
    tagged = [
        (unit, team)
        for unit, *device in connection.execute(devices).fetchall()
        if (team := tags(*device).get("team")) is not None
    ]
    connection.execute("CREATE OR REPLACE TEMP TABLE tagged (unit BIGINT, team VARCHAR)")
    query.insert(connection, "tagged", tagged)
    connection.execute(_TAG)


def _own_stays(stays: Iterable[Stay], run_id: str, frame: pl.DataFrame) -> Iterator[Stay]:
    """Yield the stays of a run. On another run's device, a stay is cut to the hours that are charged to the run."""
    hours = frame.group_by("fleet_run_id", "device_id", "pool", "device_class").agg(
        pl.col("hour").min().dt.epoch("ns").alias("from_ns"), pl.col("hour").max().dt.epoch("ns").alias("to_ns")
    )
    inside = {(*device,): (from_ns, to_ns + NS_PER_HOUR) for *device, from_ns, to_ns in hours.iter_rows()}
    for stay in stays:
        if stay.run_id == run_id:
            yield stay
        elif span := inside.get(stay.holder):
            t0_ns, t1_ns = max(stay.t0_ns, span[0]), min(stay.t1_ns, span[1])
            if t0_ns < t1_ns:
                yield replace(stay, t0_ns=t0_ns, t1_ns=t1_ns)


def _frame(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Return the charges of the period. Polars joins the tables, because it is faster here than DuckDB."""
    rows: pl.DataFrame = connection.sql(sql.read("charges/80_charges.sql")).pl().sort("place")
    payers: pl.DataFrame = connection.sql(sql.read("charges/85_units.sql")).pl()
    buckets: pl.DataFrame = connection.sql("FROM bucket ORDER BY position").pl().drop("position")
    idle = (
        pl.when(pl.col("pool") != "serving")
        .then(pl.lit("could not be lent"))
        .when(pl.col("lease_id").is_null())
        .then(pl.lit("could have been lent"))
        .otherwise(pl.lit("leased, not used"))
    )
    joined = pl.concat([rows, payers[rows["payer_row"]], buckets[rows["position"]]], how="horizontal")
    team = pl.when("of_device").then("device_team").otherwise("run_team")
    cause = pl.when(pl.col("bucket") == "idle").then(idle).otherwise("cause")
    return joined.with_columns(team=team, cause=cause).select(COLUMNS)


def _refuse_two_classes(connection: duckdb.DuckDBPyConnection) -> None:
    """Raise PricingError if hardware is in two classes at once: the cheaper class would lower what other runs pay."""
    overlaps = records(connection.execute(sql.read("charges/26_classes.sql")))
    if overlaps:
        raise PricingError(
            "the period cannot be priced, since devices are held as two classes at once; give each hardware_id one "
            "class in all fleet files, and price periods without this time:\n"
            + "\n".join(
                f"  {row['hardware_id']} over [{row['t0_ns']}, {row['t1_ns']}) ns: run {row['run_id']}, "
                f"{row['device_id']}: {row['device_class']}; run {row['other_run_id']}, {row['other_device_id']}: "
                f"{row['other_device_class']}"
                for row in overlaps
            )
        )


def _bring_charges_up_to_date(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> None:
    connection.execute("BEGIN")
    if connection.execute("SELECT book_sha256 FROM priced_by").fetchall() != [(book.sha256,)]:
        connection.execute("DELETE FROM charge")
        connection.execute("DELETE FROM priced")
        connection.execute("DELETE FROM priced_by")
        connection.execute("INSERT INTO priced_by VALUES ($sha256)", {"sha256": book.sha256})
    _run(connection, "30_todo")
    if connection.execute("FROM todo LIMIT 1").fetchall():
        _set_prices(connection, book)
        for step in ("50_time", "60_invoiced"):
            _run(connection, step)
    connection.execute("COMMIT")


def _set_prices(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> None:
    tables: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for key in records(connection.execute(sql.read("charges/35_price_keys.sql"))):
        day, ns = key["day"], key["day"] * 24 * NS_PER_HOUR
        if key["what"] == "device":
            entry = book.device_at(key["device_class"], key["pool"], ns)
            rate = _nano_ratio(Fraction(entry.usd_per_hour) / NS_PER_HOUR)
            values = [key["device_class"], key["pool"], day, *rate, entry.commitment, entry.energy_included]
        elif key["what"] == "transfer":
            usd_per_gb = Fraction(book.transfer_at(key["route"], ns).usd_per_gb)
            values = [key["route"], day, *_nano_ratio(usd_per_gb / _BYTES_PER_GB)]
        elif key["what"] == "energy":
            power = book.electricity_at(ns)
            values = [day, *_nano_ratio(Fraction(power.usd_per_kwh) * Fraction(power.pue) / MW_NS_PER_KWH)]
        else:
            values = [day, *_weights(book, ns)]
        tables[key["what"]].append(values)
    _run(connection, "40_prices")
    for name, rows_of_prices in tables.items():
        query.insert(connection, f"{name}_price", rows_of_prices)


def _nano_ratio(usd: Fraction) -> tuple[int, int]:
    return (usd * NANO_USD_PER_USD).as_integer_ratio()


def _weights(book: PriceBook, ns: int) -> tuple[int, int]:
    prices = book.tokens_at(ns)
    if not prices.output_usd_per_million:
        return (1, 0) if prices.input_usd_per_million else (1, 1)
    return (Fraction(prices.input_usd_per_million) / Fraction(prices.output_usd_per_million)).as_integer_ratio()


def _verified(ledger: Ledger) -> bool:
    """Return True if the ledger verifies. If not, return False with `allow_unverified`, and else raise PricingError."""
    with suppress(LedgerError):  # A reader writes the catalog of an earlier version anew; damage is named below.
        ledger.connect().close()
    problems = ledger.doubts
    if problems and not ledger.allow_unverified:
        raise PricingError(
            f"ledger {ledger.folder} does not verify, so its figures cannot be trusted:\n"
            + "\n".join(f"  {problem}" for problem in problems[:10])
            + "\n`--allow-unverified` gives figures that are marked as unverified."
        )
    return not problems


def refuse_archived(ledger: Ledger, connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    newest_us = ledger.archived_until_us
    if newest_us is None:
        return
    set_variables(connection, run_id=run_id)
    runs = {run_id}
    for row in rows(connection, "run/fleets"):
        # Fleet events from before the RL run began do not count for it.
        if row["run_id"] != run_id or rows(connection, "run/facts")[0]["began_ns"] <= newest_us * 1000:
            runs |= {row["run_id"], row["fleet_run_id"]}
    gone = 0
    for name in runs:
        set_variables(connection, run_id=name, archived_us=newest_us)
        gone += max(0, int(rows(connection, "run/archived")[0]["events"] or 0))
    if gone > 0:
        raise PricingError(
            f"{gone:,} events of run {run_id!r} were archived, so its figures would be incomplete: bring them "
            "back with `rose ledger restore --from ...`"
        )


def refuse_archived_since(ledger: Ledger, from_ns: int | None) -> None:
    newest_us = ledger.archived_until_us
    if newest_us is not None and (from_ns is None or from_ns <= newest_us * 1000):
        raise PricingError(
            f"events up to {utc(newest_us * 1000)} were archived, so a period that begins earlier can only be priced "
            "in part: begin it later, or bring them back with `rose ledger restore --from ...`"
        )
