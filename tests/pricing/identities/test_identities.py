"""The identities of the accounting, by their number in the definitions, on ledgers of any shape.

The same random ledgers go through every test, priced once.
"""

import random
from collections import Counter, defaultdict
from datetime import date, timedelta
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing import charges, money
from rose.pricing.answers import run_report
from rose.pricing.borrowing import provision
from rose.pricing.charges import fully_load, state
from rose.pricing.charges.allocation import shared
from rose.pricing.closing import charge_algebra
from rose.pricing.marginal_cost import power
from rose.pricing.period import Period
from rose.pricing.stats.uncertainty import Estimate
from tests.pricing import any_event
from tests.pricing.any_ledger import (
    BOOK,
    DEVICE,
    OF_DEVICE,
    Key,
    content,
    cut_slices,
    device_hours,
    half_even,
    hour_of,
    made_of,
    metered,
    on_any_ledger,
    owner,
    priced,
    prices_of,
    provisioned,
    reported,
    root_of,
    runs_reported,
    slice_of,
    summed,
    union_ns,
)
from tests.pricing.identities.random_ledger import MIDNIGHT_NS
from tests.pricing.recorded import HOUR_NS, Made, Recorded

pytestmark = pytest.mark.usefixtures("ledgers_folder")


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
    for _, _, run_id, slice_, spell, hour, part in cut_slices(made):
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
    """To within what the division rounds, a nanosecond for each run that pays; and all rollouts together have no more
    than the hardware's hour."""
    prices, hardware = prices_of(made), made.hardware()
    reported_ns: Counter[Key] = Counter()
    payers: defaultdict[Key, set[str]] = defaultdict(set)
    for _, _, run_id, slice_, spell, hour, part in cut_slices(made):
        price = prices[run_id, str(slice_.device_id), spell]
        for bucket, ns in part.items():
            key = (slice_.device_id, *price, hour, slice_.lease_id, bucket)
            reported_ns[key] += ns
            payers[key].add(owner(slice_, bucket, run_id))
    names = {(device_id, *prices[run_id, device_id, n]): name for (run_id, device_id, n), name in hardware.items()}
    worked: Counter[Key] = Counter()
    for time in shared(priced(made)):
        device, hour = (time.device_id, time.device_class, time.pool), time.hour_ns // HOUR_NS
        if time.bucket == "rollout":
            worked[names[device], hour] += int(time.ns * time.hardware_share)
        if time.bucket != "unaccounted":
            key = (*device, hour, time.lease_id, time.bucket)
            assert abs(reported_ns[key] - time.measured_ns) < max(1, len(payers[key])) / time.part
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
    grants = ((e.at_us, r, e) for _, _, r, e in made.facts(events.Lease) if e.action == "granted")
    # Several may be of one instant.
    granted = sorted(grants, key=lambda grant: grant[:2])
    for _, _, run_id, sent in made.facts(events.Sync):
        # A sync outside of a lease is for the device's next one.
        spell = made.spell(run_id, sent.device_id, sent.at_us * 1000)
        later = (
            e.lease_id
            for at_us, r, e in granted
            if (r, e.device_id) == (run_id, sent.device_id)
            and at_us >= sent.at_us
            and made.spell(run_id, e.device_id, at_us * 1000) == spell
        )
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
    for writer, seq, run_id, slice_, number, hour, part in cut_slices(made):
        spell = run_id, str(slice_.device_id), number
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


CLOSING = ("released", "preempted", "expired")


@on_any_ledger
def test_identity_4_leases_granted_are_released_preempted_expired_or_open(made: Made) -> None:
    for run_id, fleet in runs_reported(made).items():
        if (out := reported(made, run_id)) is None:
            continue
        leases = {
            name: out.figure("events", f"leases {name}", "how many").value for name in ("granted", *run_report.CLOSINGS)
        }
        owner: dict[str | None, str] = {}
        last: dict[str | None, str] = {}
        expires_us: dict[str | None, int] = {}
        for _, _, _, change in sorted(
            (fact for fact in made.facts(events.Lease) if fact[2] == fleet),
            key=lambda record: (record[3].at_us, *record[:2]),
        ):
            if change.rl_run_id is not None:
                owner.setdefault(change.lease_id, change.rl_run_id)
            if last.get(change.lease_id) not in CLOSING:
                last[change.lease_id] = change.action
            if change.action not in CLOSING:
                expires_us[change.lease_id] = change.expires_at_us
        newest_us = max(event.at_us for _, _, its_run, event in made.facts(events.Event) if its_run == fleet)
        unrenewed = [lease for lease, until_us in expires_us.items() if newest_us > until_us + 60_000_000]
        last |= {lease: "expired" for lease in unrenewed if last[lease] not in CLOSING}
        # A lease counts for the RL run that it was first granted for.
        last = {lease: action for lease, action in last.items() if run_id in (fleet, owner.get(lease))}
        counts = Counter(last.values())
        assert leases["granted"] == len(last) == sum(int(leases[name] or 0) for name in run_report.CLOSINGS)
        assert [leases[name] for name in CLOSING] == [counts[name] for name in CLOSING]


def test_a_lease_that_expires_while_another_run_works_has_expired_in_every_report() -> None:
    at_us, second_ns = MIDNIGHT_NS // 1000, 10**9
    lease = {"lease_id": "L", "rl_run_id": "rl"}
    recorded = (
        events.Run(action="started", at_us=1, name="f"),
        events.Run(action="started", at_us=2, name="rl", run_id="rl"),
        any_event.device(at_us=at_us, t_ns=MIDNIGHT_NS, device_id="d", device_class="owned"),
        any_event.lease(at_us=at_us, expires_at_us=at_us + 3_000_000, device_id="d", **lease),
        any_event.slice_(MIDNIGHT_NS, "d", **lease, rollout=second_ns),
        any_event.slice_(MIDNIGHT_NS + second_ns, "d", serving=120 * second_ns),
        any_event.slice_(MIDNIGHT_NS + 121 * second_ns, "d", serving=second_ns),
    )
    made = Made(tuple(Recorded(0, "f0", "f", event) for event in recorded))
    for run_id in ("f", "rl"):
        out = reported(made, run_id)
        assert out is not None
        counts = {name: out.figure("events", f"leases {name}", "how many").value for name in run_report.CLOSINGS}
        assert {name for name, count in counts.items() if count} == {"expired"}, run_id


def test_a_lease_that_was_granted_for_nobody_counts_for_the_fleet_alone() -> None:
    at_us = MIDNIGHT_NS // 1000
    recorded = (
        events.Run(action="started", at_us=1, name="f"),
        events.Run(action="started", at_us=2, name="rl", run_id="rl"),
        any_event.device(at_us=at_us, t_ns=MIDNIGHT_NS, device_id="d", device_class="owned"),
        any_event.lease(at_us=at_us, expires_at_us=at_us + 1, device_id="d", lease_id="L"),
        any_event.slice_(MIDNIGHT_NS, "d", lease_id="L", rl_run_id="rl", rollout=HOUR_NS),
    )
    made = Made(tuple(Recorded(0, "f0", "f", event) for event in recorded))
    granted = {
        run_id: out.figure("events", "leases granted", "how many").value
        for run_id in ("f", "rl")
        if (out := reported(made, run_id))
    }
    assert granted == {"f": 1, "rl": 0}


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
            judged = verdict and ("stale" if verdict.stale else "accepted" if verdict.accepted else "rejected")
            fate = judged or "open"
        fates[run_id, turn.device_id, fate] += turn.output_tokens
    for _, _, run_id, loss in made.facts(events.Preemption):
        fates[loss.rl_run_id or run_id, loss.device_id, "lost"] += loss.tokens_lost or 0
    # A turn that moved has an attempt on each device, and the tokens of each are there once.
    assert summed(priced(made).frame, ["run_id", "device_id", "fate"], "tokens") == +fates
    fleets = made.fleets()
    for run_id in runs_reported(made):
        if out := reported(made, run_id):
            for fate in ("accepted", "rejected", "stale", "lost", "open"):
                tokens_told = sum(row[fate].value for row in out.table("fates").records())
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
    frame = charges.price(Ledger(root_of(made_of(recorded))), BOOK).frame
    loaded = fully_load(frame)
    assert loaded["loaded_nano"].sum() == frame["cost_nano"].sum() > 0
    idle = frame.filter(pl.col("bucket") == "idle")
    got = {
        pool: loaded.filter(pl.col("device_id") == pool, pl.col("work") == pool)["loaded_nano"].sum() for pool in joined
    }
    assert got == dict(idle.group_by("pool").agg(pl.col("cost_nano").sum()).iter_rows())


_AMOUNTS = st.integers(0, 10**15)


@on_any_ledger
def test_identity_7_metered_energy_is_charged_once(made: Made) -> None:
    assert summed(priced(made).frame, DEVICE, "energy_mw_ns") == metered(made)


@given(st.lists(st.tuples(_AMOUNTS, st.integers(1, 10**12)), min_size=1, max_size=10), st.floats(-1e9, 1e9))
def test_identity_7_baseline_and_extra_energy_are_what_was_metered(
    read: list[tuple[int, int]], delta_mw: float
) -> None:
    energy_mw_ns, leased_ns = (sum(column) for column in zip(*read, strict=True))
    meter = power.Metered(
        energy_mw_ns=energy_mw_ns,
        leased_mw_ns=energy_mw_ns,
        leased_ns=leased_ns,
        delta_mw=Estimate(delta_mw, delta_mw, delta_mw),
    )
    assert meter.extra_mw_ns == round(Fraction(delta_mw) * leased_ns)
    assert meter.baseline_mw_ns == energy_mw_ns - meter.extra_mw_ns


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
    assert sum((day.accrued or 0) - day.realised - (day.released or 0) for day in known) == balance
    assert sum(day.accrued or 0 for day in known) == half_even(sum(accrued.values(), Fraction(0)) * 10**9)


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
        tags_json = tags[fleet if bucket in OF_DEVICE else run_id]
        serves = pool == "serving" and bucket in OF_DEVICE
        wanted = {"serving_team": "chat"} if serves else {"team": "x" if '"x"' in tags_json else "research"}
        ((tag, value),) = wanted.items()
        assert team == (value if f'"{tag}"' in tags_json else "unallocated")


@on_any_ledger
def test_what_the_runs_of_a_fleet_are_charged_is_the_bill_in_every_view(made: Made) -> None:
    frame, fleets = priced(made).frame, made.fleets()
    whole = fully_load(frame)
    for fleet in set(fleets.values()):
        tenants = [run_id for run_id, home in fleets.items() if home == fleet != run_id]
        of_fleet = frame.filter(fleet_run_id=fleet)
        if of_fleet.is_empty():
            continue
        bill = of_fleet["cost_nano"].sum()
        assert whole.filter(fleet_run_id=fleet)["loaded_nano"].sum() == bill
        for tenant in runs_reported(made).keys() & tenants:
            own = of_fleet.filter(run_id=tenant)
            if own.is_empty():
                with pytest.raises(money.NothingChargedError):
                    charges.price(Ledger(root_of(made)), BOOK, run_id=tenant)
                continue
            alone = charges.price(Ledger(root_of(made)), BOOK, run_id=tenant)
            loaded = whole.filter(fleet_run_id=fleet, run_id=tenant)["loaded_nano"].sum()
            assert content(alone.frame) == content(own)
            assert alone.fully_loaded()["loaded_nano"].sum() == loaded
            if (out := reported(made, tenant)) is not None:
                assert out.figure("time", "fleet", "amortized").value == alone.total_nano
                assert out.figure("time", "fleet", "fully loaded").value == loaded
        if out := reported(made, fleet):
            assert out.figure("time", "fleet", "amortized").value == bill


@on_any_ledger
def test_identity_11_the_same_ledger_and_book_give_the_same_bytes(made: Made) -> None:
    whole = priced(made)
    # Priced again from the events, in two periods: the same rows.
    state._memory.clear()
    first = whole.from_ns // HOUR_NS * HOUR_NS
    last = -(-whole.to_ns // HOUR_NS) * HOUR_NS
    at_ns = first + (last - first) // HOUR_NS // 2 * HOUR_NS
    spans = [Period(first, at_ns), Period(at_ns, last)] if first < at_ns else [None]
    parts = [charges.price(Ledger(root_of(made)), BOOK, span).frame for span in spans]
    assert content(pl.concat(parts)) == content(whole.frame)
