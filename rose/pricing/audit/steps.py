"""The steps between a charge and its events. Each is recomputed from the price book and the ledger."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from typing import Any

import polars as pl

from rose.events import BUCKETS
from rose.pricing import money
from rose.pricing.audit.evidence import Evidence, Row
from rose.pricing.charges import Stay
from rose.pricing.charges.allocation import ALL_BUCKETS, UNACCOUNTED
from rose.pricing.charges.pricing import total
from rose.pricing.charges.state import owned
from rose.pricing.price_books.entries import Entry, span_of
from rose.pricing.price_books.pricebook import PriceBook

_BYTES_PER_GB = 10**9
_RECOMPUTED = "recomputed"

Holder = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """A run's time on a device in an hour. `held_ns` is all time in which the run had the device. `ns` is the part of
    this time that is billed to the run. `others` are the runs that had the device at the same time."""

    held_ns: int
    ns: int
    others: tuple[Holder, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum as charged, and as counted again now. `asked` says whether the question is about this sum."""

    what: str
    charged: int
    recounted: int
    unit: str = "nano-dollars"
    asked: bool = True

    @property
    def ok(self) -> bool:
        return self.charged == self.recounted

    @property
    def text(self) -> str:
        if self.ok:
            return f"{self.what} = {self.recounted:,} {self.unit}"
        return f"{self.what} comes to {self.recounted:,} {self.unit}, but {self.charged:,} is charged"


@dataclass(frozen=True, slots=True)
class Step:
    title: str
    says: str
    sums: tuple[Sum, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sums": [{**asdict(total), "ok": total.ok} for total in self.sums]}


def capacity(
    rows: pl.DataFrame,
    question_rows: pl.DataFrame,
    book: PriceBook,
    hour_ns: int,
    evidence: Evidence,
    everybodys: pl.DataFrame,
    part: Held | None,
) -> Iterator[Step]:
    """Yield the steps that explain charges for device time. `rows` has the run's charges in this device-hour. The
    question is about `question_rows`, a part of `rows`. `everybodys` has the charges of all runs on the device."""
    rows, question_rows, everybodys = map(_with_tenant, (rows, question_rows, everybodys))
    names = ("fleet_run_id", "device_id", "lease_id", "bucket", "rl_run_id")
    whole = _by(rows, names)
    wanted = set(_by(question_rows, names))
    order = sorted(whole, key=_rank)
    lot = _by(everybodys, names)
    timed = {key: lot[key]["ns"] for key in sorted(lot, key=_rank) if lot[key]["ns"]}
    shares: dict[tuple[Any, ...], int] = {}
    if timed:
        ns = sum(timed.values())
        price = book.device_at(rows["device_class"][0], rows["pool"][0], hour_ns)
        charge = money.charge_nano_usd(price.usd_per_hour, ns)
        shares = money.split(charge, timed)
        rate = f"${price.usd_per_hour}"
        yield Step(
            "price", f"{rate} for each hour of {price.device_class} ({price.commitment}){_entry(book, 'device', price)}"
        )
        says = (
            f"{money.format_ns(ns)} provisioned in the hour cost {money.format_usd(charge)}, rounded once, half to even"
        )
        charged_nano = sum(amounts["cost_nano"] for amounts in lot.values())
        yield Step("device-hour", says, (Sum(f"{rate} x {ns:,} ns / 3,600,000,000,000 ns", charged_nano, charge),))
        if part is not None and part.others:
            others = ", ".join(f"{device_id} of run {run_id}" for run_id, device_id, *_ in part.others)
            says = f"the run held the device for {money.format_ns(part.held_ns)} of the hour, some of it together with "
            says += f"{others}; of the shared time, each run has an equal part"
            yield Step("shared", says, (Sum("its part of the time", total(rows, "ns"), part.ns, "ns"),))
        says = "divided among runs, leases and buckets by nanoseconds, the largest remainders rounded up"
        named = {key: f"{charge:,} x {timed.get(key, 0):,} / {ns:,} ns ({_named(key)})" for key in order}
    else:
        says = "no time of the device was provisioned in the hour, so what was made in it costs nothing"
        named = {key: f"no time ({_named(key)})" for key in order}
    sums = (Sum(named[key], whole[key]["cost_nano"], shares.get(key, 0), asked=key in wanted) for key in order)
    yield Step("by time", says, tuple(sums))
    for key in order:
        *_, lease_id, bucket, rl_run_id = key
        if bucket == "rollout" and key in wanted:
            own = (pl.col("bucket") == bucket) & pl.col("lease_id").eq_missing(lease_id)
            own &= pl.col("rl_run_id").eq_missing(rl_run_id)
            nano = shares.get(key, 0)
            yield _rollout(
                rows.filter(own), question_rows.filter(own), (lease_id, rl_run_id), nano, book, hour_ns, evidence
            )
    charged, sought = {key[2:]: amounts for key, amounts in whole.items()}, {key[2:] for key in wanted}
    yield _slices(charged, sought, evidence, part)


def held(stays: Iterable[Stay], hour_ns: int) -> dict[Holder, Held]:
    """Return each run's part of a device's hour. Time that several runs share is divided equally."""
    spans = [
        (stay.holder, max(stay.t0_ns, hour_ns), min(stay.t1_ns, hour_ns + money.NS_PER_HOUR))
        for stay in stays
        if stay.t0_ns < hour_ns + money.NS_PER_HOUR and stay.t1_ns > hour_ns
    ]
    whole, own = ({holder: 0 for holder, *_ in spans} for _ in range(2))
    met: dict[Holder, set[Holder]] = {holder: set() for holder, *_ in spans}
    for from_ns, to_ns in pairwise(sorted({ns for _, *times in spans for ns in times})):
        holders = sorted(holder for holder, t0_ns, t1_ns in spans if t0_ns <= from_ns and t1_ns >= to_ns)
        for place, holder in enumerate(holders):
            part_ns, left_ns = divmod(to_ns - from_ns, len(holders))
            whole[holder] += to_ns - from_ns
            own[holder] += part_ns + (place < left_ns)
            met[holder].update(holders)
    return {holder: Held(whole[holder], own[holder], tuple(sorted(met[holder] - {holder}))) for holder in sorted(whole)}


def transfer(
    rows: pl.DataFrame, question_rows: pl.DataFrame, book: PriceBook, hour_ns: int, evidence: Evidence
) -> Iterator[Step]:
    """Yield the steps that explain charges of weight syncs. `rows` are all transfer charges of the device-hour."""
    sent: Counter[tuple[Any, ...]] = Counter()
    for event in evidence.syncs:
        sent[event["route"], event["policy_version"], event["rl_run_id"]] += event["wire_bytes"]
    charged, wanted = (
        _by(_with_tenant(frame), ("route", "policy_version", "rl_run_id")) for frame in (rows, question_rows)
    )
    for route in sorted(set(question_rows["route"])):
        price = book.transfer_at(route, hour_ns)
        rate = Fraction(price.usd_per_gb) * money.NANO_USD_PER_USD / _BYTES_PER_GB
        sums = [
            Sum(f"{row['bytes']:,} bytes at that price, rounded once", row["cost_nano"], round(row["bytes"] * rate))
            for row in question_rows.filter(pl.col("route") == route).iter_rows(named=True)
        ]
        says = f"${price.usd_per_gb} for each GB over the route {route}{_entry(book, 'transfer', price)}"
        yield Step("price", says, tuple(sums))
    sums = [
        Sum(f"route {key[0]}, version {key[1]}{_whose(key[2])}", amounts["bytes"], sent[key], "bytes", key in wanted)
        for key, amounts in charged.items()
    ]
    yield Step("syncs", "bytes that the syncs of the hour moved, by route and policy version", tuple(sums))


def energy(rows: pl.DataFrame, book: PriceBook, hour_ns: int, evidence: Evidence, *, shared: bool) -> Iterator[Step]:
    """Yield the steps that explain energy charges. If `shared`, other runs have energy charges of this device too."""
    price = book.electricity_at(hour_ns)
    rate = Fraction(price.usd_per_kwh) * Fraction(price.pue) * money.NANO_USD_PER_USD / money.MW_NS_PER_KWH
    metered = total(rows, "energy_mw_ns")
    says = f"${price.usd_per_kwh} per kWh x PUE {price.pue}{_entry(book, 'electricity', price)}"
    charged = Sum(f"{metered:,} mW ns at that price, rounded once", total(rows, "cost_nano"), round(metered * rate))
    yield Step("price", says, (charged,))
    says = "mean power of each reading x its time in the hour"
    if shared:
        yield Step("readings", f"{says}; other runs read the device too, and what they all read is divided equally")
    else:
        read = sum(row["energy_mw_ns"] for row in evidence.readings)
        yield Step("readings", says, (Sum("energy", metered, read, "mW ns"),))


def _rollout(
    rows: pl.DataFrame,
    question_rows: pl.DataFrame,
    under: tuple[str | None, str | None],
    nano: int,
    book: PriceBook,
    hour_ns: int,
    evidence: Evidence,
) -> Step:
    prices = book.tokens_at(hour_ns)
    token_events = [event for event in evidence.tokens if (event["lease_id"], event["rl_run_id"]) == under]
    again: Counter[tuple[Any, ...]] = Counter()
    for event in token_events:
        again[event["policy_version"], event["task"]] += event["recomputed_tokens"]
    listed = {_fate(row): row for row in rows.iter_rows(named=True)}
    for (version, task), tokens in again.items():
        # Corrected periods have no row without amounts; its weight still counts.
        key = (version, task, _RECOMPUTED, "recomputed after preemption")
        if tokens and key not in listed:
            listed[key] = {"tokens": 0, "cost_nano": 0}
    rates = Fraction(prices.input_usd_per_million), Fraction(prices.output_usd_per_million)
    input_rate, output_rate = rates if any(rates) else (Fraction(1), Fraction(1))
    tokens_by_key = {
        key: again[key[:2]] if key[2] == _RECOMPUTED else listed[key]["tokens"] for key in sorted(listed, key=_nulls)
    }
    weights = {
        key: tokens * (input_rate if key[2] == _RECOMPUTED else output_rate) for key, tokens in tokens_by_key.items()
    }
    scale = lcm(*(weight.denominator for weight in weights.values()))
    shares = money.split(nano, {key: int(weight * scale) for key, weight in weights.items()})
    wanted, whole = {_fate(row) for row in question_rows.iter_rows(named=True)}, sum(weights.values())
    percent = {key: f"{float(part / whole):.4%}" if whole else f"1 / {len(weights)}" for key, part in weights.items()}
    sums = []
    for key, tokens in tokens_by_key.items():
        what = (
            f"{nano:,} x {percent[key]} ({key[2]}, version {key[0]}, task {key[1] or 'not known'}, {tokens:,} tokens)"
        )
        sums.append(Sum(what, listed[key]["cost_nano"], shares[key], asked=key in wanted))
    counted = sum(row["tokens"] for row in listed.values())
    recorded = sum(event["tokens"] for event in token_events)
    sums.append(Sum("tokens of the hour's turns and preemptions", counted, recorded, "tokens"))
    says = f"divided by tokens: a generated one counts ${prices.output_usd_per_million}, a prompt token that was "
    says += f"computed again ${prices.input_usd_per_million} per million{_entry(book, 'tokens', prices)}"
    return Step(f"rollout, {_lease(under[0])}{_whose(under[1])}", says, tuple(sums))


def _slices(
    charged: Mapping[tuple[Any, ...], Mapping[str, int]],
    wanted: set[tuple[Any, ...]],
    evidence: Evidence,
    part: Held | None,
) -> Step:
    reported_ns: Counter[tuple[Any, ...]] = Counter()
    for row in evidence.slices:
        for rl_run_id, own in owned(row, {bucket: row[bucket] for bucket in BUCKETS}):
            for bucket, ns in own.items():
                reported_ns[row["lease_id"], bucket, rl_run_id] += ns
    scaled = ""
    if part is not None and part.ns < part.held_ns:
        reported_ns[None, UNACCOUNTED, None] = part.held_ns - reported_ns.total()
        reported = {
            key: reported_ns[key]
            for key in sorted(reported_ns, key=lambda key: _rank(("", "", *key)))
            if reported_ns[key]
        }
        reported_ns = Counter(money.split(part.ns, reported))
        scaled = f", in proportion to the run's part, {part.ns:,} of {part.held_ns:,} ns"
    keys = [key for key in dict.fromkeys((*charged, *+reported_ns)) if key[1] != UNACCOUNTED]
    says = f"{len(evidence.slices):,} slices of the device report where the time went; the rest is unaccounted{scaled}"
    sums = (
        Sum(_named(key), charged[key]["ns"] if key in charged else 0, reported_ns[key], "ns", key in wanted)
        for key in keys
    )
    return Step("slices", says, tuple(sums))


def _entry(book: PriceBook, table: str, entry: Entry) -> str:
    entries = book.tables[table]
    nth = next(place for place, candidate in enumerate(entries) if candidate is entry)
    header = re.compile(rf"\s*\[\[?\s*{table}\s*\]\]?\s*(#.*)?$")
    lines = [number for number, line in enumerate(book.text.splitlines(), 1) if header.match(line)]
    at = f", line {lines[nth]}" if nth < len(lines) else ""
    return (
        f", {span_of(*entry.days)}; source: {entry.source} ({entry.source_date}); price book {book.name} "
        f"{book.version} ({book.sha256[:12]}){at}"
    )


def _by(rows: pl.DataFrame, keys: Iterable[str]) -> dict[tuple[Any, ...], dict[str, int]]:
    names = ("ns", "tokens", "bytes", "cost_nano")
    grouped = rows.group_by(*keys, maintain_order=True).agg(pl.col(name).sum() for name in names)
    width = len(grouped.columns) - len(names)
    return {row[:width]: dict(zip(names, map(int, row[width:]), strict=True)) for row in grouped.iter_rows()}


def _named(key: tuple[Any, ...]) -> str:
    *_, lease_id, bucket, rl_run_id = key
    return f"{bucket}, {_lease(lease_id)}{_whose(rl_run_id)}"


def _rank(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*_nulls(key[:3]), ALL_BUCKETS.index(key[3]), *_nulls(key[4:]))


def _with_tenant(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(rl_run_id=pl.when(pl.col("run_id") != pl.col("fleet_run_id")).then("run_id"))


def _whose(rl_run_id: str | None) -> str:
    return f", run {rl_run_id}" if rl_run_id else ""


def _lease(lease_id: str | None) -> str:
    return f"lease {lease_id}" if lease_id else "not lent"


def _fate(row: Row) -> tuple[Any, ...]:
    return row["policy_version"], row["task"], row["fate"], row["cause"]


def _nulls(values: Iterable[Any]) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value if value is not None else 0) for value in values)
