"""The product's charges as an analyst would compute them, without `rose.pricing`: a reference for charges and speed.
A device is provisioned from each joining until it leaves, else until its last slice or its run's end. Each UTC hour
costs rate times time, rounded once, half to even; buckets, leases and fates of tokens share it by nanoseconds. Transfer
and energy are rounded once per device-hour. A sync outside a lease belongs to the device's next lease."""

import tomllib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import polars as pl

from rose.ledger.files import catalog

BUCKETS = ("serving", "rollout", "train", "sync", "activation", "headroom", "idle")
ALL = (*BUCKETS, "unaccounted")  #: In the order in which ties are settled.
HOUR_NS = 3_600_000_000_000
_PLACE = ("run_id", "hour", "device_id", "lease_id")
#: The columns of a row, before its amounts. Missing text is "", a missing number -1. Rows of zeros are left out.
KEY = (*_PLACE, "kind", "bucket", "policy_version", "task", "fate", "cause", "route")
AMOUNTS = ("ns", "tokens", "bytes", "energy_mw_ns", "cost_nano")

K = TypeVar("K", bound=Hashable)
#: (run_id, device_id, hour, lease_id), and the fate of tokens made there: (version, task, fate, cause).
Place = tuple[str, str, int, str]
Fate = tuple[int, str, str, str]


def price(root: Path, book: str) -> pd.DataFrame:
    """Return every charge of the ledger, with columns KEY and AMOUNTS and hours since the epoch."""
    prices = Prices(book)
    with catalog.connect(root) as ledger:

        def read(select: str) -> pd.DataFrame:
            return ledger.sql(select).to_arrow_table().to_pandas()

        stays = _stays(read)
        charges = [*_capacity(stays, _time(read), _tokens(read, prices), prices)]
        charges += [*_transfer(read, prices), *_energy(read, stays, prices)]
    return pd.DataFrame(charges, columns=[*KEY, *AMOUNTS]).sort_values([*KEY], ignore_index=True)


class Prices:
    def __init__(self, text: str) -> None:
        self._tables = tomllib.loads(text, parse_float=Decimal)

    def entry(self, table: str, hour: int, **values: str | None) -> dict[str, Any]:
        (entry,) = self._entries(table, hour, values)
        return entry

    def device(self, hour: int, device_class: str, pool: str) -> dict[str, Any]:
        """Return the price for the class in this pool, or else for the class."""
        own = self._entries("device", hour, {"class": device_class, "pool": pool})
        return own[0] if own else self.entry("device", hour, **{"class": device_class, "pool": None})

    def _entries(self, table: str, hour: int, values: dict[str, str | None]) -> list[dict[str, Any]]:
        day = datetime.fromtimestamp(hour * 3600, UTC).date()
        entries = self._tables[table]
        return [
            entry
            for entry in (entries if isinstance(entries, list) else [entries])
            if all(entry.get(key) == value for key, value in values.items())
            and entry.get("valid_from", date.min) <= day < entry.get("valid_to", date.max)
        ]


def split(total: int, weights: dict[K, int]) -> dict[K, int]:
    """Split by largest remainder, ties to the first key; equally if all weights are zero."""
    if not any(weights.values()):
        weights = dict.fromkeys(weights, 1)
    whole = sum(weights.values())
    parts = {key: total * weight // whole for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: total * weights[key] % whole, reverse=True)
    for key in by_remainder[: total - sum(parts.values())]:
        parts[key] += 1
    return parts


def _stays(read: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """Return each provisioned time [t0_ns, t1_ns). Raises ValueError for a device of two classes or pools."""
    device = read(
        "SELECT run_id, device_id, pool, device_class, joined_ns AS t0_ns, coalesce(left_ns, 0) AS left_ns FROM tenure"
    )
    kinds = device[["run_id", "device_id", "pool", "device_class"]].drop_duplicates()
    if moved := kinds[kinds.duplicated(["run_id", "device_id"])]["device_id"].tolist():
        raise ValueError(f"{moved[0]} is of two classes or pools, which this reference knows nothing of")
    # With int64 a device without slices would turn all nanoseconds into floats.
    last = read("SELECT run_id, device_id, max(t1_ns) AS last_ns FROM device_slice GROUP BY ALL")
    last["last_ns"] = last["last_ns"].astype("Int64")
    run = read("SELECT run_id, coalesce(1000 * epoch_us(ended_at), 0) AS ended_ns FROM run")
    stays = device.merge(last, how="left", on=["run_id", "device_id"]).merge(run, how="left", on="run_id")
    until = stays[["t0_ns", "last_ns", "ended_ns"]].fillna(0).astype("int64").max(axis=1)
    stays["t1_ns"] = stays["left_ns"].where(stays["left_ns"] > 0, until)
    return stays


def _time(read: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    slices = read(
        "SELECT run_id, device_id, coalesce(lease_id, '') AS lease_id, t0_ns, t1_ns, "
        + ", ".join(f"{bucket}_ns AS {bucket}" for bucket in BUCKETS)
        + " FROM device_slice WHERE t1_ns > t0_ns"
    )
    first, last = slices["t0_ns"] // HOUR_NS, (slices["t1_ns"] - 1) // HOUR_NS
    whole = slices[first == last].assign(hour=first[first == last])
    cut = [piece for row in slices[first != last].to_dict("records") for piece in _cut(row)]
    pieces = pd.concat([whole, pd.DataFrame(cut)]) if cut else whole
    by = ["run_id", "device_id", "hour", "lease_id"]
    return pieces.groupby(by, as_index=False, sort=False)[[*BUCKETS]].sum()


def _cut(row: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
    left = {bucket: int(row[bucket]) for bucket in BUCKETS}
    for hour in range(row["t0_ns"] // HOUR_NS, (row["t1_ns"] - 1) // HOUR_NS + 1):
        part = split(min(row["t1_ns"], (hour + 1) * HOUR_NS) - max(row["t0_ns"], hour * HOUR_NS), left)
        left = {bucket: left[bucket] - part[bucket] for bucket in BUCKETS}
        yield {**row, **part, "hour": hour}


def _tokens(read: Callable[[str], pd.DataFrame], prices: Prices) -> dict[Place, dict[Fate, tuple[int, int]]]:
    """Return the fates of each place's tokens: output tokens, and the weight of all tokens."""
    turns, lost = _turns(read), _lost(read)
    places: dict[Place, dict[Fate, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    by = ["run_id", "device_id", "hour", "lease_id", "version", "task", "fate", "cause"]
    again = turns[turns["again"] > 0].assign(fate="recomputed", cause="recomputed after preemption")
    outputs = pd.concat([turns, lost])
    for kind, rows in (("output", outputs), ("input", again)):
        tokens = "output_tokens" if kind == "output" else "again"
        for *key, count in rows.groupby(by)[tokens].sum().reset_index().itertuples(index=False):
            if not count:
                continue
            rates = prices.entry("tokens", key[2])
            rate = {name: Fraction(rates[f"{name}_usd_per_million"]) for name in ("input", "output")}
            # Any scale that makes both prices whole numbers gives the same shares.
            scale = rate["input"].denominator * rate["output"].denominator
            sums = places[tuple(key[:4])][tuple(key[4:])]
            sums[0] += int(count) if kind == "output" else 0
            sums[1] += int(count) * int(rate[kind] * scale)
    return {place: {fate: (out, weight) for fate, (out, weight) in fates.items()} for place, fates in places.items()}


def _turns(read: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """Return each attempt at a turn, its tokens' fate, and recomputed prompt tokens."""
    turns = read(
        f"SELECT run_id, device_id, epoch_ns(event_time) // {HOUR_NS} AS hour, coalesce(lease_id, '') AS lease_id, "
        "coalesce(policy_version, -1) AS version, trajectory_id, turn, attempt, outcome, output_tokens, "
        "prompt_tokens - cached_tokens AS uncached FROM turn"
    )
    keys = ["run_id", "trajectory_id"]
    turns = turns.merge(_last(read, "trajectory", "task, outcome AS ended"), how="left", on=keys)
    turns = turns.merge(_last(read, "verdict", "accepted, stale"), how="left", on=keys)
    turns["task"] = turns["task"].fillna("")
    turns["fate"], turns["cause"] = _fates(turns)
    turns = turns.sort_values([*keys, "turn", "attempt"])
    before = turns[[*keys, "turn", "outcome"]].shift(1)
    again = (before[[*keys, "turn"]] == turns[[*keys, "turn"]]).all(axis=1) & (before["outcome"] == "preempted")
    turns["again"] = turns["uncached"].where(again, 0)
    return turns


def _last(read: Callable[[str], pd.DataFrame], view: str, columns: str) -> pd.DataFrame:
    keys, order = ["run_id", "trajectory_id"], ["event_time", "writer", "seq"]
    events = read(f"SELECT {', '.join([*keys, *order])}, {columns} FROM {view} WHERE trajectory_id IS NOT NULL")
    return events.sort_values(order).drop_duplicates(keys, keep="last").drop(columns=order)


def _fates(turns: pd.DataFrame) -> tuple[Any, Any]:
    failed, gone = turns["outcome"] == "failed", turns["ended"] == "lost"
    judged = turns["accepted"].notna()
    stale, accepted = judged & turns["stale"].eq(True), judged & turns["accepted"].eq(True)
    conditions = [failed, gone, stale, accepted, judged]
    fates = np.select(conditions, ["lost", "lost", "stale", "accepted", "rejected"], "open")
    return fates, np.select(conditions, ["failed attempt", "lost trajectory", "stale", "", "rejected"], "")


def _lost(read: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    """Return the tokens that a preemption discarded before any turn had them."""
    return read(
        f"SELECT run_id, device_id, epoch_ns(event_time) // {HOUR_NS} AS hour, coalesce(lease_id, '') AS lease_id, "
        "-1 AS version, '' AS task, tokens_lost AS output_tokens, 'lost' AS fate, 'preempted' AS cause "
        "FROM preemption WHERE tokens_lost > 0"
    )


def _capacity(
    stays: pd.DataFrame, time: pd.DataFrame, tokens: dict[Place, dict[Fate, tuple[int, int]]], prices: Prices
) -> Iterator[tuple[Any, ...]]:
    used: dict[tuple[str, str, int], dict[tuple[str, int], int]] = defaultdict(dict)
    for run_id, device_id, hour, lease_id, *ns in time.itertuples(index=False):
        for rank, bucket_ns in enumerate(ns):
            if bucket_ns:
                used[run_id, device_id, hour][lease_id, rank] = bucket_ns
    left = dict(tokens)
    for _, spans in stays.groupby(["run_id", "device_id"], sort=False):
        # A device that was away for a part of an hour is charged once for the rest of the hour.
        hours: dict[int, int] = defaultdict(int)
        for stay in spans.to_dict("records"):
            for hour in range(stay["t0_ns"] // HOUR_NS, (stay["t1_ns"] - 1) // HOUR_NS + 1):
                hours[hour] += min(stay["t1_ns"], (hour + 1) * HOUR_NS) - max(stay["t0_ns"], hour * HOUR_NS)
        for hour, provisioned in hours.items():
            rate = prices.device(hour, stay["device_class"], stay["pool"])["usd_per_hour"]
            charge = round(Fraction(rate) * 10**9 * provisioned / HOUR_NS)
            spent = used[stay["run_id"], stay["device_id"], hour]
            if unaccounted := provisioned - sum(spent.values()):
                spent["", len(BUCKETS)] = unaccounted
            weights = {key: spent[key] for key in sorted(spent)}
            for (lease_id, rank), cost in split(charge, weights).items():
                place, ns = (stay["run_id"], stay["device_id"], hour, lease_id), weights[lease_id, rank]
                fates = (
                    left.pop(place, None)
                    if ALL[rank] == "rollout"
                    else {(-1, "", "", _cause(stay, *place[3:], rank)): (0, 1)}
                )
                yield from _divided(place, ALL[rank], ns, cost, fates)
    for place, fates in left.items():  # Tokens of places without rollout time.
        yield from _divided(place, "rollout", 0, 0, fates)


def _cause(stay: dict[Any, Any], lease_id: str, rank: int) -> str:
    if ALL[rank] != "idle":
        return ""
    if stay["pool"] != "serving":
        return "could not be lent"
    return "leased, not used" if lease_id else "could have been lent"


def _divided(
    place: Place, bucket: str, ns: int, cost: int, fates: dict[Fate, tuple[int, int]] | None
) -> Iterator[tuple[Any, ...]]:
    run_id, device_id, hour, lease_id = place
    fates = fates or {(-1, "", "no tokens", ""): (0, 1)}
    weights = {fate: fates[fate][1] for fate in sorted(fates)}
    times, costs = split(ns, weights), split(cost, weights)
    for fate in weights:
        amounts = (times[fate], fates[fate][0], 0, 0, costs[fate])
        if any(amounts):
            yield (run_id, hour, device_id, lease_id, "capacity", bucket, *fate, "", *amounts)


def _transfer(read: Callable[[str], pd.DataFrame], prices: Prices) -> Iterator[tuple[Any, ...]]:
    sync = read(
        "SELECT run_id, device_id, epoch_us(event_time) AS at_us, coalesce(lease_id, '') AS lease_id, route, "
        "coalesce(policy_version, -1) AS version, wire_bytes FROM sync"
    )
    granted: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for run_id, device_id, at_us, lease_id in read(
        "SELECT run_id, device_id, epoch_us(event_time) AS at_us, lease_id FROM lease_event "
        "WHERE action = 'granted' ORDER BY at_us"
    ).itertuples(index=False):
        granted[run_id, device_id].append((at_us, lease_id))
    keys = ["run_id", "device_id"]
    for number, *device, at_us in sync[sync["lease_id"] == ""][[*keys, "at_us"]].itertuples():
        leases = granted[tuple(device)]
        after = bisect_left(leases, (at_us, ""))
        sync.loc[number, "lease_id"] = leases[after][1] if after < len(leases) else ""
    sync["hour"] = sync["at_us"] * 1000 // HOUR_NS
    moved = sync.groupby([*keys, "hour", "lease_id", "route", "version"])["wire_bytes"].sum().reset_index()
    for run_id, device_id, hour, lease_id, route, version, size in moved.itertuples(index=False):
        # Dollars per billion bytes are nano-dollars per byte.
        cost = round(Fraction(prices.entry("transfer", hour, route=route)["usd_per_gb"]) * size)
        key = (run_id, hour, device_id, lease_id, "transfer", "transfer", version, "", "", "", route)
        if size or cost:
            yield (*key, 0, 0, size, 0, cost)


def _energy(read: Callable[[str], pd.DataFrame], stays: pd.DataFrame, prices: Prices) -> Iterator[tuple[Any, ...]]:
    devices = {(stay["run_id"], stay["device_id"]): stay for stay in stays.to_dict("records")}
    metered: dict[tuple[str, str, int], int] = defaultdict(int)
    for run_id, device_id, t0_ns, t1_ns, power_mw in read(
        "SELECT run_id, device_id, t0_ns, t1_ns, power_mw FROM power WHERE t1_ns > t0_ns AND power_mw IS NOT NULL"
    ).itertuples(index=False):
        for hour in range(t0_ns // HOUR_NS, (t1_ns - 1) // HOUR_NS + 1):
            inside_ns = min(t1_ns, (hour + 1) * HOUR_NS) - max(t0_ns, hour * HOUR_NS)
            metered[run_id, device_id, hour] += power_mw * inside_ns
    for (run_id, device_id, hour), mw_ns in metered.items():
        stay, tariff = devices[run_id, device_id], prices.entry("electricity", hour)
        if prices.device(hour, stay["device_class"], stay["pool"]).get("energy_included"):
            continue
        # 1e12 milliwatt-nanoseconds are a joule, 3.6e6 joules a kWh.
        cost = round(Fraction(tariff["pue"]) * Fraction(tariff["usd_per_kwh"]) * mw_ns / (3_600_000 * 1000))
        if mw_ns:
            yield (run_id, hour, device_id, "", "energy", "energy", -1, "", "", "", "", 0, 0, 0, mw_ns, cost)


def of_charges(frame: pl.DataFrame) -> pl.DataFrame:
    rows = frame.with_columns(
        pl.col("hour").dt.epoch("s") // 3600,
        pl.col("policy_version").fill_null(-1),
        *(pl.col(name).fill_null("") for name in ("lease_id", "task", "fate", "cause", "route")),
    )
    return _sorted(rows)


def of_naive(frame: pd.DataFrame) -> pl.DataFrame:
    return _sorted(pl.DataFrame({name: frame[name].tolist() for name in frame.columns}))


def differences(one: pl.DataFrame, other: pl.DataFrame) -> list[str]:
    faults = []
    for by in (["kind"], ["run_id", "device_id", "hour", "bucket"], [*KEY]):
        sums = [side.group_by(by).agg(pl.col(name).sum() for name in AMOUNTS) for side in (one, other)]
        joined = sums[0].join(sums[1], on=by, how="full", suffix="_other", coalesce=True)
        apart = pl.any_horizontal(pl.col(name).ne_missing(pl.col(f"{name}_other")) for name in AMOUNTS)
        faults += [str(row) for row in joined.filter(apart).sort(by).head(10).to_dicts()]
    return faults[:10]


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    types = dict.fromkeys(KEY, pl.String) | dict.fromkeys(("hour", "policy_version", *AMOUNTS), pl.Int64)
    rows = frame.select(*KEY, *AMOUNTS).cast(types)  # type: ignore[arg-type]
    return rows.filter(pl.any_horizontal(pl.col(name) != 0 for name in AMOUNTS)).sort(KEY)
