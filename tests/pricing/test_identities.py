"""The identities of the accounting, by their number in the definitions, on ledgers of any shape.

What must come out is worked out here from the events alone, in plain Python. Ledgers are written for real; the same
random ledgers go through every test, priced once. `IDENTITY_EXAMPLES=50` tries more of them.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from rose import events
from rose.ledger import segments
from rose.ledger.growth import compaction
from rose.pricing import charges
from rose.pricing.borrowing import power, provision
from rose.pricing.charges import Charges, fully_load
from rose.pricing.charges.measured import shared
from rose.pricing.charges.state import cut
from rose.pricing.closing import charge_algebra, close, restate, store
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run import report
from tests.pricing.random_ledger import BOOK as BOOK_TEXT
from tests.pricing.random_ledger import HOUR_NS, MIDNIGHT_NS, PORTIONS, Made, Recorded, ledgers

BOOK = pricebook.parse(BOOK_TEXT, "awkward.toml")
EXAMPLES = int(os.environ.get("IDENTITY_EXAMPLES", "4"))
#: One for all tests of a session, another in the next one.
SEED = random.randrange(2**32)
#: A ledger takes a while to write, so one that fails is shown as it is. Take `phases` out to have it made smaller.
QUIET = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate]
)
#: Where pricing keeps its sums of a ledger that is worth it; a file there makes it keep those of any.
KEPT = "pricing.duckdb"

Key = tuple[Any, ...]


def on_any_ledger(test: Callable[..., None]) -> Callable[..., None]:
    """The same ledgers for every test, so that each is written and priced once."""
    return seed(SEED)(QUIET(given(made=ledgers(portions=1))(test)))


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[None]:
    yield
    root_of.cache_clear()
    shutil.rmtree(folder_of_ledgers())
    folder_of_ledgers.cache_clear()


@functools.cache
def folder_of_ledgers() -> Path:
    """Where the ledgers lie; gone at the end."""
    return Path(tempfile.mkdtemp(prefix="identities-"))


@functools.cache
def root_of(made: Made) -> Path:
    root = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "ledger"
    made.write(root)
    return root


@functools.cache
def priced(made: Made) -> Charges:
    return charges.price(root_of(made), BOOK)


def told(made: Made) -> dict[str, str]:
    """The runs that reports are made of, which take a while: each fleet's, and an RL run of each."""
    chosen = {(fleet, run_id == fleet): run_id for run_id, fleet in made.fleets().items()}
    return {run_id: fleet for (fleet, _), run_id in chosen.items()}


@functools.cache
def reported(made: Made, run_id: str) -> dict[str, Any] | None:
    """The report of a run, or None where it has no device time."""
    if not priced(made).frame.filter(pl.any_horizontal(pl.col("run_id", "fleet_run_id") == run_id))["ns"].sum():
        with pytest.raises(PricingError, match=run_id):
            report.build(root_of(made), run_id, BOOK)
        return None
    return report.build(root_of(made), run_id, BOOK).to_json()


def content(frame: pl.DataFrame) -> bytes:
    """The frame as the bytes that a close freezes: its rows, their order and their types."""
    return store.parquet(frame)


def hour_of(when: datetime) -> int:
    return int(when.replace(tzinfo=UTC).timestamp()) // 3600


def hours(t0_ns: int, t1_ns: int) -> Iterable[tuple[int, int]]:
    """Every hour of [t0_ns, t1_ns), and the time in it."""
    for hour in range(t0_ns // HOUR_NS, -(-t1_ns // HOUR_NS)):
        if inside := min(t1_ns, (hour + 1) * HOUR_NS) - max(t0_ns, hour * HOUR_NS):
            yield hour, inside


def summed(frame: pl.DataFrame, by: list[str], amount: str) -> Counter[Key]:
    """Sums of an amount by some columns, hours as their number, without what is 0."""
    sums: Counter[Key] = Counter()
    for *key, value in frame.select(*by, amount).iter_rows():
        sums[tuple(hour_of(part) if isinstance(part, datetime) else part for part in key)] += value
    return +sums


def half_even(amount: Fraction) -> int:
    whole, rest = divmod(amount.numerator, amount.denominator)
    twice = 2 * rest - amount.denominator
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))


#: Buckets of the RL run whose rollouts they are, and those that the device's team pays.
ROLLOUT = ("rollout", "sync", "activation", "headroom")
OF_DEVICE = ("serving", "headroom", "idle", "unaccounted", "energy")
DEVICE = ["fleet_run_id", "device_id", "device_class", "pool", "hour"]


def owner(slice_: events.DeviceSlice, bucket: str, run_id: str) -> str:
    """Whose charge a bucket of a slice is; `run_id` is the run that the slice is of."""
    named = {"train": slice_.train_run_id} | dict.fromkeys(ROLLOUT, slice_.rollout_run_id)
    return named.get(bucket) or run_id


def prices_of(made: Made) -> dict[Key, tuple[str, str]]:
    """Class and pool by run, device and spell."""
    return {(tenure.run_id, tenure.device_id, tenure.spell): tenure.price for tenure in made.tenures()}


def provisioned(made: Made) -> Counter[Key]:
    """Nanoseconds by run, device, class, pool and hour: each run's part."""
    prices = prices_of(made)
    return +Counter(
        {
            (run_id, device_id, *prices[run_id, device_id, spell], hour): part_ns
            for (run_id, device_id, spell, hour), (_, part_ns) in made.parts().items()
        }
    )


def device_hours(made: Made) -> Counter[Key]:
    """What each hour of each hardware in one class and pool costs, nano-dollars: each rounded once."""
    prices, times = prices_of(made), Counter[Key]()
    hardware = {(*key[:2], *prices[key]): name for key, name in made.hardware().items()}
    for (run_id, device_id, *price, hour), ns in provisioned(made).items():
        times[hardware[run_id, device_id, *price], *price, hour] += ns
    costs = Counter(dict.fromkeys(times, 0))
    for (name, device_class, pool, hour), ns in times.items():
        rate = Fraction(BOOK.device_at(device_class, pool, hour * HOUR_NS).usd_per_hour)
        costs[name, device_class, pool, hour] = half_even(rate * 10**9 * ns / HOUR_NS)
    return costs


def metered(made: Made) -> Counter[Key]:
    """Milliwatt-nanoseconds by run, device, class, pool and hour, where the device's price does not hold its energy."""
    prices, time, energy = prices_of(made), made.read(), Counter[Key]()
    for _, _, run_id, read in made.facts(events.Power):
        key = (run_id, str(read.device_id), made.spell(run_id, read.device_id, read.t0_ns))
        if read.power_mw is not None and prices[key][0] == "owned":
            for hour, ns in hours(read.t0_ns, read.t1_ns):
                energy[*key, hour] += read.power_mw * ns
    return +Counter(
        {
            (*key[:2], *prices[key], hour): mw_ns * time[*key, hour][1] // time[*key, hour][0]
            for (*name, hour), mw_ns in (+energy).items()
            for key in [tuple(name)]
        }
    )


def union_ns(spans: Iterable[tuple[int, int]]) -> Counter[int]:
    """The time that spans cover, by hour."""
    cover_ns: Counter[int] = Counter()
    until = 0
    for t0_ns, t1_ns in sorted(spans):
        for hour, ns in hours(max(t0_ns, until), t1_ns) if t1_ns > max(t0_ns, until) else ():
            cover_ns[hour] += ns
        until = max(until, t1_ns)
    return cover_ns


@on_any_ledger
def test_identity_1_bucket_nanoseconds_sum_to_provisioned_ones(made: Made) -> None:
    frame = priced(made).frame
    assert summed(frame, DEVICE, "ns") == provisioned(made)
    # Whoever holds it, an hour of a device is an hour.
    hardware = made.hardware()
    whole: Counter[Key] = Counter()
    for name in set(hardware.values()):
        own = [tenure for tenure in made.tenures() if hardware[tenure.run_id, tenure.device_id, tenure.spell] == name]
        for hour, ns in union_ns((tenure.t0_ns, tenure.t1_ns) for tenure in own).items():
            whole[name, hour] += ns
    assert summed(frame, ["hardware_id", "hour"], "ns") == +whole
    # Each bucket has what slices report of it, or the run's part of that to within a nanosecond.
    reported_ns: Counter[Key] = Counter()
    for _, _, run_id, slice_ in made.facts(events.DeviceSlice):
        spell = made.spell(run_id, slice_.device_id, slice_.t0_ns)
        row = {
            name: getattr(slice_, name) for name in ("t0_ns", "t1_ns", *(f"{bucket}_ns" for bucket in events.BUCKETS))
        }
        for hour, part in cut(row) if slice_.t1_ns > slice_.t0_ns else ():
            for bucket, ns in part.items():
                payer = owner(slice_, bucket, run_id)
                reported_ns[run_id, slice_.device_id, spell, hour, slice_.lease_id, bucket, payer] += ns
    by = [*DEVICE, "lease_id", "bucket", "run_id"]
    charged_ns = summed(frame.filter(pl.col("bucket") != "unaccounted"), by, "ns")
    tenure, parts = prices_of(made), made.parts()
    for (run_id, device_id, spell, hour, *rest), ns in (+reported_ns).items():
        held_ns, part_ns = parts[run_id, device_id, spell, hour]
        got = charged_ns.pop((run_id, device_id, *tenure[run_id, device_id, spell], hour, *rest), 0)
        assert abs(got - Fraction(ns * part_ns, held_ns)) < 1
        assert got == ns or part_ns < held_ns
    assert not charged_ns


@on_any_ledger
def test_what_was_measured_of_a_shared_hour_is_what_slices_report_of_it(made: Made) -> None:
    """To within what the division rounds; and all rollouts together have no more than the hardware's hour."""
    prices, hardware = prices_of(made), made.hardware()
    reported_ns: Counter[Key] = Counter()
    for _, _, run_id, slice_ in made.facts(events.DeviceSlice):
        price = prices[run_id, str(slice_.device_id), made.spell(run_id, slice_.device_id, slice_.t0_ns)]
        row = {
            name: getattr(slice_, name) for name in ("t0_ns", "t1_ns", *(f"{bucket}_ns" for bucket in events.BUCKETS))
        }
        for hour, part in cut(row) if slice_.t1_ns > slice_.t0_ns else ():
            for bucket, ns in part.items():
                reported_ns[slice_.device_id, *price, hour, slice_.lease_id, bucket] += ns
    names = {(device_id, *prices[run_id, device_id, n]): name for (run_id, device_id, n), name in hardware.items()}
    worked: Counter[Key] = Counter()
    for time in shared(priced(made)):
        device, hour = (time.device_id, time.device_class, time.pool), time.hour_ns // HOUR_NS
        if time.bucket == "rollout":
            worked[names[device], hour] += int(time.ns * time.hardware_share)
        if time.bucket != "unaccounted":
            assert abs(reported_ns[*device, hour, time.lease_id, time.bucket] - time.measured_ns) < 1 / time.part
    for (name, hour), ns in worked.items():
        spans = (
            (one.t0_ns, one.t1_ns) for one in made.tenures() if hardware[one.run_id, one.device_id, one.spell] == name
        )
        # A nanosecond of a run's part is as many of the hour as there are runs.
        assert ns <= union_ns(spans)[hour] + 100


@on_any_ledger
def test_identity_2_bucket_dollars_sum_to_fleet_dollars(made: Made) -> None:
    result, frame = priced(made), priced(made).frame
    fleet = device_hours(made)
    capacity = frame.filter(pl.col("kind") == "capacity")
    lot = ["hardware_id", "device_class", "pool", "hour"]
    assert summed(capacity, lot, "cost_nano") == +fleet
    # Each run, lease and bucket has its share to within a nano-dollar, so nothing was put where there was room for it.
    by = [*lot, "fleet_run_id", "device_id", "lease_id", "bucket", "run_id"]
    times, costs, whole = summed(capacity, by, "ns"), summed(capacity, by, "cost_nano"), summed(capacity, lot, "ns")
    for key, ns in times.items():
        assert abs(costs[key] - Fraction(fleet[key[:4]] * ns, whole[key[:4]])) < 1
    moved: Counter[Key] = Counter()
    granted = sorted((e.at_us, r, e) for _, _, r, e in made.facts(events.Lease) if e.action == "granted")
    for _, _, run_id, sent in made.facts(events.Sync):
        # A sync outside of a lease is for the device's next one.
        spell = made.spell(run_id, sent.device_id, sent.at_us * 1000)
        later = (
            e.lease_id
            for at_us, r, e in granted
            if (r, e.device_id) == (run_id, sent.device_id) and at_us >= sent.at_us
            and made.spell(run_id, e.device_id, at_us * 1000) == spell
        )  # fmt: skip
        lease_id = sent.lease_id or next(later, None)
        hour, price = sent.at_us * 1000 // HOUR_NS, prices_of(made)[run_id, sent.device_id, spell]
        payer = sent.rl_run_id or run_id
        moved[run_id, sent.device_id, hour, lease_id, sent.route, sent.policy_version, *price, payer] += sent.wire_bytes
    transfer = Counter(
        {
            key: half_even(Fraction(BOOK.transfer_at(key[4], key[2] * HOUR_NS).usd_per_gb) * size)
            for key, size in moved.items()
        }
    )
    by = ["fleet_run_id", "device_id", "hour", "lease_id", "route", "policy_version", "device_class", "pool", "run_id"]
    syncs = frame.filter(pl.col("kind") == "transfer")
    assert (summed(syncs, by, "bytes"), summed(syncs, by, "cost_nano")) == (+moved, +transfer)
    energy = 0
    for (*_, hour), mw_ns in metered(made).items():
        tariff = BOOK.electricity_at(hour * HOUR_NS)
        energy += half_even(Fraction(tariff.usd_per_kwh) * Fraction(tariff.pue) * mw_ns / 3_600_000_000)
    assert result.total_nano == sum(fleet.values()) + sum(transfer.values()) + energy
    assert result.total_nano == frame["cost_nano"].sum()


@on_any_ledger
def test_identity_3_each_slice_lands_once(made: Made) -> None:
    slices: dict[Key, set[tuple[str, int]]] = {}
    prices, parts, small = prices_of(made), made.parts(), set()
    for writer, seq, run_id, slice_ in made.facts(events.DeviceSlice):
        row = {name: getattr(slice_, name) for name in ("t0_ns", "t1_ns", *(f"{name}_ns" for name in events.BUCKETS))}
        for hour, part in cut(row) if slice_.t1_ns > slice_.t0_ns else ():
            spell = run_id, str(slice_.device_id), made.spell(run_id, slice_.device_id, slice_.t0_ns)
            for payer in {owner(slice_, bucket, run_id) for bucket, ns in part.items() if ns}:
                key = (*spell[:2], *prices[spell], hour, slice_.lease_id, payer)
                slices.setdefault(key, set()).add((writer, seq))
                if len(set(parts[*spell, hour])) > 1:
                    small.add(key)
    reported_rows = priced(made).frame.filter(
        (pl.col("kind") == "capacity") & (pl.col("bucket") != "unaccounted") & (pl.col("ns") > 0)
    )
    columns = [*DEVICE, "lease_id", "run_id", "writer", "first_seq", "last_seq"]
    seen: set[Key] = set()
    for *device, when, lease_id, payer, writer, first_seq, last_seq in reported_rows.select(columns).iter_rows():
        key = (*device, hour_of(when), lease_id, payer)
        seen.add(key)
        made_of = slices[key]
        if writer is None:
            assert len({name for name, _ in made_of}) > 1
        else:
            seqs = [seq for name, seq in made_of if name == writer]
            assert (len(seqs), min(seqs), max(seqs)) == (len(made_of), first_seq, last_seq)
    # Of a slice of a few nanoseconds another run may have the part that is charged.
    assert seen <= set(slices) <= seen | small


@on_any_ledger
def test_identity_4_leases_granted_are_released_preempted_expired_or_open(made: Made) -> None:
    for run_id, fleet in told(made).items():
        if (out := reported(made, run_id)) is None:
            continue
        leases = {name: figure["value"] for name, figure in out["leases"].items()}
        # Of an RL run the leases that it had a part of.
        own = {slice_.lease_id for *_, slice_ in made.facts(events.DeviceSlice) if slice_.rollout_run_id == run_id}
        own |= {change.lease_id for *_, change in made.facts(events.Lease) if run_id in (change.rl_run_id, fleet)}
        last: dict[str | None, str] = {}
        for _, _, _, change in sorted(
            (fact for fact in made.facts(events.Lease) if fact[2] == fleet and fact[3].lease_id in own),
            key=lambda record: (record[3].at_us, *record[:2]),
        ):
            if last.get(change.lease_id) not in ("released", "preempted", "expired"):
                last[change.lease_id] = change.action
        counts = Counter(last.values())
        assert (
            leases["granted"] == len(last) == sum(leases[name] for name in ("released", "preempted", "expired", "open"))
        )
        assert [leases[name] for name in ("released", "preempted", "expired")] == [
            counts[name] for name in ("released", "preempted", "expired")
        ]


@on_any_ledger
def test_identity_5_tokens_generated_have_one_fate_each(made: Made) -> None:
    fates: Counter[Key] = Counter()
    lost = {(r, e.trajectory_id) for _, _, r, e in made.facts(events.Trajectory) if e.outcome == "lost"}
    verdicts: dict[Key, events.Verdict] = {}
    for _, _, run_id, verdict in sorted(made.facts(events.Verdict), key=lambda fact: (fact[3].at_us, *fact[:2])):
        verdicts[run_id, verdict.trajectory_id] = verdict
    for _, _, run_id, turn in made.facts(events.Turn):
        verdict = verdicts.get((run_id, turn.trajectory_id))
        if turn.outcome == "failed" or (run_id, turn.trajectory_id) in lost:
            fate = "lost"
        else:
            fate = (
                "open"
                if verdict is None
                else "stale"
                if verdict.stale
                else "accepted"
                if verdict.accepted
                else "rejected"
            )
        fates[run_id, turn.device_id, fate] += turn.output_tokens
    for _, _, run_id, loss in made.facts(events.Preemption):
        fates[loss.rl_run_id or run_id, loss.device_id, "lost"] += loss.tokens_lost or 0
    # A turn that moved has an attempt on each device, and the tokens of each are there once.
    assert summed(priced(made).frame, ["run_id", "device_id", "fate"], "tokens") == +fates
    fleets = made.fleets()
    for run_id in told(made):
        if out := reported(made, run_id):
            for fate in ("accepted", "rejected", "stale", "lost", "open"):
                tokens_told = sum(tokens[fate]["value"] for tokens in out["tokens"].values())
                counts = (count for (r, _, f), count in fates.items() if run_id in (r, fleets[r]) and f == fate)
                assert tokens_told == sum(counts)


@on_any_ledger
def test_identity_6_spreading_idle_keeps_the_total(made: Made) -> None:
    frame = priced(made).frame
    loaded = fully_load(frame)
    # The day of an hour is the whole of it, so the sums of days are those of the frame.
    days = [
        pl.col("hour").dt.truncate("1d").alias("hour") if name == "hour" else name
        for name in ("fleet_run_id", "device_id", "hour")
    ]
    before, after = (
        charges_.select(*days, amount) for charges_, amount in ((frame, "cost_nano"), (loaded, "loaded_nano"))
    )
    by = ["fleet_run_id", "device_id", "hour"]
    assert summed(before, by, "cost_nano") == summed(after, by, "loaded_nano")
    assert set(loaded["work"]) <= set(charges.WORK)
    assert (loaded["loaded_nano"] >= loaded["cost_nano"]).all()
    nobodys = pl.col("bucket") == "unaccounted"
    assert loaded.filter(nobodys)["loaded_nano"].sum() == frame.filter(nobodys)["cost_nano"].sum()


def test_identity_6_spreading_idle_keeps_the_total_where_every_weight_is_zero() -> None:
    """A device of each pool that only idled, and one whose work cost nothing: their idle goes where the pool is."""
    joined = {
        pool: events.Device(action="joined", device_id=pool, t_ns=MIDNIGHT_NS, pool=pool, device_class="owned", at_us=1)  # type: ignore[arg-type]
        for pool in ("serving", "rollout", "train")
    }
    recorded: list[events.Event] = [events.Run(action="started", name="a", at_us=1), *joined.values()]
    for pool in joined:
        recorded.append(slice_of(pool, MIDNIGHT_NS, idle=HOUR_NS // 2 + 1))
        # A nanosecond of work costs nothing.
        recorded.append(slice_of(pool, MIDNIGHT_NS + HOUR_NS, train=1))
    root = root_of(made_of(recorded))
    frame = charges.price(root, BOOK).frame
    loaded = fully_load(frame)
    assert loaded["loaded_nano"].sum() == frame["cost_nano"].sum() > 0
    idle = frame.filter(pl.col("bucket") == "idle")
    got = {
        pool: loaded.filter(pl.col("device_id") == pool, pl.col("work") == pool)["loaded_nano"].sum() for pool in joined
    }
    assert got == dict(idle.group_by("pool").agg(pl.col("cost_nano").sum()).iter_rows())


def slice_of(device_id: str, t0_ns: int, **ns: int) -> events.DeviceSlice:
    buckets: dict[str, Any] = {f"{bucket}_ns": ns.get(bucket, 0) for bucket in events.BUCKETS}
    return events.DeviceSlice(device_id=device_id, t0_ns=t0_ns, t1_ns=t0_ns + sum(ns.values()), at_us=1, **buckets)


def made_of(recorded: Iterable[events.Event]) -> Made:
    return Made(tuple(Recorded(0, "w", "a", event) for event in recorded))


_AMOUNTS = st.integers(0, 10**15)
_READINGS = st.dictionaries(
    st.tuples(st.integers(0, 4), st.booleans()), st.tuples(_AMOUNTS, st.integers(1, 10**12)), max_size=10
)


@on_any_ledger
def test_identity_7_metered_energy_is_charged_once(made: Made) -> None:
    assert summed(priced(made).frame, DEVICE, "energy_mw_ns") == metered(made)


@given(_READINGS)
def test_identity_7_baseline_and_extra_energy_are_what_was_metered(
    read: dict[tuple[int, bool], tuple[int, int]],
) -> None:
    spread = {"clusters": 3, "yy": 1.0, "yx": 1.0, "xx": 1.0}
    rows = [
        {"load_bin": b, "lent": lent, "energy_mw_ns": mw_ns, "duration_ns": ns, **spread}
        for (b, lent), (mw_ns, ns) in read.items()
    ]
    meter = power.measure("owned", rows)
    both = [b for b in range(5) if {(b, True), (b, False)} <= set(read)]
    if not both:
        assert meter is None
        return
    assert meter is not None
    assert meter.baseline_mw_ns + meter.extra_mw_ns == meter.energy_mw_ns == sum(mw_ns for mw_ns, _ in read.values())
    # Where each lent bin has an unlent one, the baseline is what lent time draws at the mean of unlent time.
    if all((b, False) in read for b, lent in read if lent):
        exact = sum(Fraction(read[b, False][0], read[b, False][1]) * read[b, True][1] for b in both)
        exact += sum(mw_ns for (_, lent), (mw_ns, _) in read.items() if not lent)
        assert abs(meter.baseline_mw_ns - exact) <= Fraction(len(both), 2)


_USD = st.fractions(-10, 10, max_denominator=10**12)
_DAYS = st.integers(0, 20).map(lambda n: date(2026, 2, 20) + timedelta(days=n))


@given(st.dictionaries(_DAYS, _USD.filter(lambda usd: usd >= 0)), st.dictionaries(_DAYS, _USD))
def test_identity_8_the_provision_rolls_forward(accrued: dict[date, Fraction], realised: dict[date, Fraction]) -> None:
    roll = provision.roll_forward(accrued, realised)
    assert [day.day for day in roll] == sorted({*accrued, *realised})
    known = [day for day in roll if day.closing is not None]
    balance = 0
    for day in known:
        assert None not in (day.opening, day.accrued, day.released)
        assert day.opening == balance
        assert day.closing == balance + (day.accrued or 0) - day.realised - (day.released or 0)
        assert (day.released or 0) >= 0
        balance = day.closing or 0
    # Nothing is lost on the way: all that was provided and was not spent is released, or still there.
    moved = sum((day.accrued or 0) - day.realised - (day.released or 0) for day in known)
    assert moved == balance
    assert sum(day.accrued or 0 for day in known) == half_even(sum(accrued.values(), Fraction(0)) * 10**9)


@seed(SEED)
@settings(QUIET, max_examples=EXAMPLES // 2)
@given(made=ledgers())
def test_identity_9_closed_and_corrections_are_restated(made: Made) -> None:
    """What arrives after a close is a correction of it, and what was closed can be asked for as it was."""
    day_ns = 24 * HOUR_NS
    period = Period(MIDNIGHT_NS - 3 * day_ns, MIDNIGHT_NS + 4 * day_ns)
    root = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "ledger"
    made.write(root, last=0)
    began_us = period.to_ns // 1000
    if not provisioned(Made(tuple(record for record in made.recorded if record.portion == 0))):
        return
    closed = close.close(root, period, BOOK, with_open_runs=True, now_us=began_us)
    frames = [closed.frame]
    assert content(closed.frame) == content(closed.charges.frame)
    for portion in range(1, PORTIONS):
        made.write(root, portion, portion)
        restate.restate(root, closed.close_id, "late events", now_us=began_us + portion)
        now = store.read(root, closed.close_id)
        truth = charges.price(root, BOOK, from_ns=period.from_ns, to_ns=period.to_ns).frame
        assert charge_algebra.difference(truth, now.frame).is_empty()
        for amount in charge_algebra.AMOUNTS:
            assert now.charges.frame[amount].sum() + now.corrections[amount].sum() == truth[amount].sum()
        frames.append(now.frame)
    for portion, frame in enumerate(frames):
        then = store.read(root, closed.close_id, as_of_ns=(began_us + portion) * 1000)
        assert content(then.frame) == content(frame)
        assert content(then.charges.frame) == content(closed.frame)


@on_any_ledger
def test_identity_10_a_drill_down_sums_to_its_parent(made: Made) -> None:
    frame = priced(made).frame
    ways = random.Random(len(made.recorded)).sample([name for name in charge_algebra.BY if name != "work"], 4)
    for depth in range(len(ways)):
        parents: Counter[Key] = Counter()
        for child in charge_algebra.drill(frame, ways[: depth + 1]):
            assert all(child[name] is not None for name in ways[: depth + 1])
            parents[tuple(child[name] for name in ways[:depth])] += child["cost_nano"]
        drilled = {
            tuple(row[name] for name in ways[:depth]): row["cost_nano"]
            for row in charge_algebra.drill(frame, ways[:depth])
        }
        assert parents == Counter(drilled)
    # Who pays is said of every row, and is "unallocated" just where the run's tags do not say.
    tags = {run_id: str(e.tags_json) for _, _, run_id, e in made.facts(events.Run) if e.action == "started"}
    whose = ["run_id", "fleet_run_id", "pool", "bucket", "team"]
    for run_id, fleet, pool, bucket, team in frame.select(whose).unique().iter_rows():
        said = tags[fleet if bucket in OF_DEVICE else run_id]
        serves = pool == "serving" and bucket in OF_DEVICE
        wanted = {"serving_team": "chat"} if serves else {"team": "x" if '"x"' in said else "research"}
        ((tag, value),) = wanted.items()
        assert team == (value if f'"{tag}"' in said else "unallocated")


@on_any_ledger
def test_what_the_runs_of_a_fleet_are_charged_is_the_bill_in_every_view(made: Made) -> None:
    frame, fleets = priced(made).frame, made.fleets()
    whole = fully_load(frame)
    for fleet in set(fleets.values()):
        tenants = [run_id for run_id, home in fleets.items() if home == fleet != run_id]
        of_fleet = frame.filter(fleet_run_id=fleet)
        if of_fleet.is_empty():
            continue
        assert content(charges.price(root_of(made), BOOK, run_id=fleet).frame) == content(of_fleet)
        bill = of_fleet.filter(run_id=fleet)["cost_nano"].sum()
        loaded = whole.filter(fleet_run_id=fleet, run_id=fleet)["loaded_nano"].sum()
        for tenant in tenants:
            own = of_fleet.filter(run_id=tenant)
            if own.is_empty():
                with pytest.raises(charges.NothingChargedError):
                    charges.price(root_of(made), BOOK, run_id=tenant)
                continue
            alone = charges.price(root_of(made), BOOK, run_id=tenant)
            assert content(alone.frame) == content(own)
            bill += alone.total_nano
            loaded += alone.fully_loaded()["loaded_nano"].sum()
            if tenant in told(made) and (out := reported(made, tenant)) is not None:
                assert out["amortized"]["total"]["value"] == alone.total_nano
                assert out["fully_loaded"]["total"]["value"] == alone.fully_loaded()["loaded_nano"].sum()
        assert bill == loaded == of_fleet["cost_nano"].sum()
        if out := reported(made, fleet):
            assert out["amortized"]["total"]["value"] == bill


@on_any_ledger
def test_identity_11_the_same_ledger_and_book_give_the_same_bytes(made: Made) -> None:
    whole = priced(made)
    # Priced again, in two periods: the same rows.
    first = whole.from_ns // HOUR_NS * HOUR_NS
    last = -(-whole.to_ns // HOUR_NS) * HOUR_NS
    at_ns = first + (last - first) // HOUR_NS // 2 * HOUR_NS
    spans = [(None, at_ns), (at_ns, None)] if first < at_ns else [(None, None)]
    parts = [charges.price(root_of(made), BOOK, from_ns=begin, to_ns=end).frame for begin, end in spans]
    assert content(pl.concat(parts)) == content(whole.frame)


@seed(SEED)
@settings(QUIET, max_examples=EXAMPLES // 2)
@given(made=ledgers(punctual=False))
def test_identity_11_whatever_the_split_of_the_work(made: Made) -> None:
    """Priced after each portion that arrives, with what pricing kept of the ones before, and after compaction: always
    the bytes that pricing the same ledger for the first time gives."""
    home = Path(tempfile.mkdtemp(dir=folder_of_ledgers()))
    kept = home / "kept"
    for portion in range(PORTIONS):
        made.write(kept, portion, portion)
        (kept / KEPT).touch()
        fresh = home / f"fresh-{portion}"
        if portion:
            made.write(fresh, last=portion)
            assert outcome(kept) == outcome(fresh)
            assert not (fresh / KEPT).exists()
        else:
            outcome(kept)
    assert (kept / KEPT).stat().st_size > 0
    last = outcome(kept)
    for writer in sorted({slice_.writer for slice_ in made.recorded}):
        tail = segments.recover(kept, writer)
        assert tail is not None
        segments.begin_epoch(kept, tail)
    compaction.compact(kept, grace_s=0)
    assert outcome(kept) == last
    (kept / KEPT).unlink()
    assert outcome(kept) == last


def test_identity_11_a_retry_counts_once_whichever_portion_it_came_in() -> None:
    """Of an event that was sent twice the first by its time counts, also if it is the second to arrive."""
    at_us = MIDNIGHT_NS // 1000
    joined = events.Device(
        action="joined", device_id="d", t_ns=MIDNIGHT_NS - HOUR_NS, pool="rollout", device_class="owned", at_us=1
    )
    ids: dict[str, Any] = {"trajectory_id": "t", "group_id": "g", "step": 0, "turn": 0, "attempt": 0, "device_id": "d"}
    turn = events.Turn(
        **ids, event_id="sent twice", outcome="completed", placement="lease", prompt_tokens=1, cached_tokens=0,
        output_tokens=9, answer_tokens=1, queue_ns=0, duration_ns=1, at_us=at_us,
    )  # fmt: skip
    slice_event = slice_of("d", MIDNIGHT_NS - HOUR_NS, rollout=2 * HOUR_NS)
    first: list[events.Event] = [events.Run(action="started", name="a", at_us=1), joined, slice_event, turn]
    made = Made(
        (*(Recorded(0, "w", "a", event) for event in first), Recorded(1, "v", "a", replace(turn, at_us=at_us - 1)))
    )
    home = Path(tempfile.mkdtemp(dir=folder_of_ledgers()))
    made.write(home / "kept", last=0)
    (home / "kept" / KEPT).touch()
    charges.price(home / "kept", BOOK)
    made.write(home / "kept", 1, 1)
    made.write(home / "fresh")
    kept, fresh = (charges.price(home / name, BOOK).frame for name in ("kept", "fresh"))
    by = ["hour", "fate", "tokens", "cost_nano"]
    assert kept.select(by).rows() == fresh.select(by).rows()
    assert content(kept) == content(fresh)


def outcome(root: Path) -> bytes | str:
    """The bytes of a ledger's charges, or why it has none."""
    try:
        return content(charges.price(root, BOOK).frame)
    except PricingError as error:
        return str(error).replace(str(root), "")


@seed(SEED)
@settings(QUIET, max_examples=EXAMPLES // 2)
@given(made=ledgers(portions=1), data=st.data())
def test_time_that_is_reported_twice_is_refused(made: Made, data: st.DataObject) -> None:
    slices = [
        record
        for record in made.recorded
        if isinstance(record.event, events.DeviceSlice) and record.event.t1_ns > record.event.t0_ns
    ]
    again = data.draw(st.sampled_from(slices))
    assert isinstance(again.event, events.DeviceSlice)
    at_ns = data.draw(st.integers(again.event.t0_ns, again.event.t1_ns - 1))
    root = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "ledger"
    made.write(root)
    (root / KEPT).touch()
    charges.price(root, BOOK)
    late = slice_of(str(again.event.device_id), at_ns, idle=1)
    Made((Recorded(0, "late", again.run_id, late),)).write(root)
    for _ in range(2):
        with pytest.raises(PricingError, match=r"overlaps|outside"):
            charges.price(root, BOOK)
        (root / KEPT).unlink(missing_ok=True)
