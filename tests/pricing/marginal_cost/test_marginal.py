import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.borrowing.marginal_tables import price
from rose.pricing.charges.allocation import TIME_BUCKETS, Allocation, allocate
from rose.pricing.marginal_cost.marginal import Marginal, marginal, plain
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError
from rose.pricing.query import snapshot
from rose.pricing.run import priced as pricing
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats.bootstrap import Interval
from tests.pricing import any_event, reference
from tests.pricing.answers.conftest import device_cost, ends
from tests.pricing.borrowing.test_pool_changes import read
from tests.pricing.closing.conftest import write
from tests.pricing.conftest import T0_NS, S, WriteLedger, joined, printed, rests_on, section, us, work
from tests.pricing.marginal_cost.lending_books import PRICED, book_with
from tests.pricing.marginal_cost.test_harm import WASHOUT_S, WINDOW_S, WINDOWS, WITHHELD
from tests.pricing.marginal_cost.test_harm import run as held_out

MIDNIGHT_NS = T0_NS + 86_400 * S
SOURCED = 'source = "made up"\nsource_date = 2026-01-01\n'
BOOK = book_with()
#: Every term is charged, at rates that do not come out even.
UNEVEN = book_with(
    ("scheduler_usd_per_lease_s = 0\n", "scheduler_usd_per_lease_s = 0.000333333333\n"),
    ("kv_recompute_usd_per_million_tokens = 0\n", "kv_recompute_usd_per_million_tokens = 7.77\n"),
    ("violation_usd = 0\n", "violation_usd = 0.111111111\n"),
)
PRICE = Fraction(BOOK.device_at("h100-sxm", "serving", T0_NS).usd_per_hour)


def by_book(run: PricedRun, *books: PriceBook) -> list[Marginal]:
    return [marginal(run.connection, "run", run.allocation, book) for book in books]


@pytest.fixture(scope="module")
def sample_by(sample_kept: Path) -> Iterator[Callable[[PriceBook], Marginal]]:
    with pricing.priced(Ledger(sample_kept), "run", BOOK) as run:
        yield lambda book: by_book(run, book)[0]


def kept(from_s: int, to_s: int) -> events.ScaleDown:
    return any_event.scale_down(device_id="s0", t0_ns=T0_NS + from_s * S, t1_ns=T0_NS + to_s * S)


def test_the_sample_by_hand(sample_by: Callable[[PriceBook], Marginal]) -> None:
    result = sample_by(BOOK)
    assert result.borrowed_ns == 1440 * S
    # (680 - 267) W over 1584 s of rollout, sync and activation; PUE 1.25 at $0.10/kWh.
    assert result.terms["energy"].usd == Fraction(413 * 1584) * Fraction(5, 4) / 3_600_000 / 10
    assert (result.terms["energy"].basis, result.terms["provision"].basis) == ("assumed", "absent")
    # 2 GB to the serving device; what the dedicated one received is not the borrow's.
    assert result.terms["transfer"].usd == Fraction(4, 100)
    assert result.usd == result.charged_usd == sum(term.usd for term in result.terms.values())
    assert (result.basis, result.missing, result.no_interval) == ("partly measured", (), None)
    # Energy is a guess, and the book says how good a one: watts from 70% to 120%, the tariff from 60% to 160%.
    energy_usd, usd = float(result.terms["energy"].usd), float(result.usd)
    expected = usd - energy_usd * math.hypot(0.3, 0.4), usd + energy_usd * math.hypot(0.2, 0.6)
    assert ends(result.interval) == pytest.approx(expected)
    bare = sample_by(book_with(("low_share = 0.7\nhigh_share = 1.2\n", "")))
    assert (bare.interval, bare.estimate) == (None, None)
    assert bare.no_interval == "energy: power of h100-sxm is assumed, and the price book gives no range for it"
    energy = reference.energy_usd_per_device_s(413 * 1584 / 1440, 1.25, 0.10)
    assert float(result.usd / 1440) == pytest.approx(energy + reference.transfer_usd_per_device_s(2, 0.02, 1440))


def test_every_term_is_charged_when_the_book_sets_it(sample_by: Callable[[PriceBook], Marginal]) -> None:
    prices = book_with(
        ("scheduler_usd_per_lease_s = 0", "scheduler_usd_per_lease_s = 0.001"),
        ("kv_recompute_usd_per_million_tokens = 0", "kv_recompute_usd_per_million_tokens = 2"),
        ("violation_usd = 0", "violation_usd = 0.5"),
    )
    result = sample_by(prices)
    # L1 to L3 lasted 3000 s; L4 is open and counts to the end of the hour, not to its expiry after it.
    assert result.terms["scheduler"].usd == Fraction(3600, 1000)
    # The attempt after the preempted one had 450 uncached prompt tokens.
    assert result.terms["kv_recompute"].usd == Fraction(900, 10**6)
    # One of three lent requests missed its budget, none of two unlent ones, all in the same load bin.
    assert result.terms["provision"].usd == Fraction(1, 2)
    assert result.terms["provision"].basis == "measured"
    # No lease of the sample was withheld at random, so what lent requests missed is no fair comparison.
    assert result.interval is None
    assert str(result.no_interval).startswith("provision: confounded: leases were never withheld at random")
    # A route or a power figure that the book lacks is refused.
    with pytest.raises(PriceBookError, match="route 'inter-region'"):
        sample_by(book_with(('route = "inter-region"', 'route = "by ship"')))
    with pytest.raises(PriceBookError, match=r"\[\[power\]\] for device class 'h100-sxm'"):
        sample_by(book_with(('[[power]]\nclass = "h100-sxm"', '[[power]]\nclass = "other"')))


def test_metered_power_is_compared_with_withheld_windows(write_ledger: WriteLedger) -> None:
    """Readings of 70 s, of which some lie across the edges of windows of 100 s and of their wash-outs of 40 s."""
    seconds = WINDOWS * WINDOW_S
    watts = [300 + 150 * (not WITHHELD[n // 70 * 70 // WINDOW_S]) + n // 70 % 7 for n in range(seconds)]
    made = [
        *held_out(),
        *(
            any_event.power(t0_ns=T0_NS + n * S, t1_ns=T0_NS + (n + 70) * S, power_mw=watts[n] * 1000)
            for n in range(0, seconds - 70, 70)
        ),
        # What nothing metered is in no mean.
        any_event.power(t0_ns=T0_NS + (seconds - 70) * S, t1_ns=T0_NS + seconds * S, power_mw=None),
    ]
    answer = section(write_ledger(made), price, "run", PRICED)
    metered = range(len(range(0, seconds - 70, 70)) * 70)
    clean = [
        WITHHELD[n // WINDOW_S] and (n % WINDOW_S >= WASHOUT_S or (n >= WINDOW_S and WITHHELD[n // WINDOW_S - 1]))
        for n in metered
    ]
    alone = statistics.fmean(watts[n] for n in metered if clean[n])
    extra_j = sum(watts[n] - alone for n in metered if not clean[n])
    leased_s = sum(not WITHHELD[n // WINDOW_S] for n in metered)
    extra = answer.figure("meters", "h100-sxm", "extra watts while leased")
    assert extra.value == pytest.approx(extra_j / leased_s)
    assert extra.low < extra.value < extra.high
    figures = {name: answer.figure("meters", "h100-sxm", name).value for name in ("metered", "anyway", "extra")}
    assert figures["metered"] == sum(watts[n] for n in metered) * 1000 * S
    assert figures["anyway"] + figures["extra"] == figures["metered"]
    energy = answer.figure("terms", "energy", "in all")
    usd = extra.value * WITHHELD.count(False) * WINDOW_S * 1.25 / 3_600_000 / 10
    assert (energy.value, energy.basis) == (pytest.approx(usd * 10**9, abs=1), "measured")
    assert energy.low < energy.value < energy.high


def test_a_meter_of_a_run_without_withheld_windows_leaves_energy_assumed(sample: Path, write_ledger: Any) -> None:
    read = any_event.power(t0_ns=T0_NS, t1_ns=T0_NS + 60 * S, power_mw=520_000)
    write_ledger([read], root=sample, writer="second")
    with pricing.priced(Ledger(sample), "run", BOOK) as run:
        energy, answer = run.borrow.terms["energy"], price(run)
    assert energy.basis == "assumed"
    assert "confounded: leases were never withheld" in energy.explained
    extra = answer.figure("meters", "h100-sxm", "extra")
    assert (extra.value, str(extra.why).startswith("confounded")) == (None, True)
    assert rests_on(answer, "prefix cache").startswith("confounded: leases were never withheld")


def test_serving_s_delay_beside_rollouts_is_no_load_of_its_own(write_ledger: WriteLedger) -> None:
    beside = {"beside_ns": 20, "beside_work_ns": 5, "delayed_ns": 15}
    shown = read(write_ledger(held_out(beside=beside)), WINDOWS * WINDOW_S)
    lent_s = WITHHELD.count(False) * WINDOW_S
    # Serving has 35 s of 100 s, and would have taken 10 s less alone.
    base_ns, busy_ns = (sum(row[name] for row in shown["borrowing/lent_time"]) for name in ("base_ns", "busy_ns"))
    assert (base_ns, busy_ns) == (lent_s * S // 4, lent_s * S * 8 // 10)
    loads = {round(row["load"], 9) for row in shown["borrowing/load_and_demand"]}
    assert loads == {0.25, 0.30}
    known = [row for row in shown["borrowing/violations_by_load"] if row["lent"]]
    assert {row["load_bin"] for row in known} == {1}


def starts(role: Literal["serving", "rollout"], after_s: int, took_s: int) -> events.Engine:
    place = {"device_id": "s0", "engine_id": f"s0-{role}", "role": role}
    return any_event.engine(**place, duration_ns=took_s * S, at_us=us(after_s))


def test_an_engine_s_start_is_charged_to_what_needed_it(
    sample: Path, write_ledger: Any, sample_by: Callable[[PriceBook], Marginal]
) -> None:
    assert "it is unknown whose engine started for 72.0 s of it" in sample_by(BOOK).terms["energy"].explained
    write_ledger([starts("serving", 30, 27), starts("rollout", 40, 9)], root=sample, writer="agent")
    with pricing.priced(Ledger(sample), "run", BOOK) as run:
        energy = run.borrow.terms["energy"]
    assert energy.usd == Fraction(413 * (1584 - 27)) * Fraction(5, 4) / 3_600_000 / 10
    assert "it is unknown whose engine started for 36.0 s of it" in energy.explained


def test_where_the_fleet_would_not_have_existed_device_time_is_charged(
    sample_by: Callable[[PriceBook], Marginal], sample: Path, write_ledger: Any
) -> None:
    whole = PRICE * 1440 / 3600
    gone = sample_by(book_with(("idle_anyway = true", "idle_anyway = false")))
    assert (gone.idle_anyway, gone.avoidable_usd) == (0, whole)
    silent = sample_by(book_with(("idle_anyway = true", "")))
    assert (silent.idle_anyway, silent.avoidable_usd, silent.unstated_usd) == (None, 0, whole)
    likely = book_with(("idle_anyway = true", "idle_anyway = 0.75\nidle_anyway_low = 0.5\nidle_anyway_high = 1"))
    stated = sample_by(likely)
    assert (stated.idle_anyway, stated.avoidable_usd, stated.unstated_usd) == (Fraction(3, 4), whole / 4, 0)
    assert stated.avoidable_interval == Interval(low=0, high=float(whole / 2))
    assert ends(stated.charged_interval)[1] - ends(stated.interval)[1] > 0.4
    # Decisions that overlap count once.
    write_ledger([kept(1000, 1300), kept(1200, 1600)], root=sample, writer="kim")
    with pricing.priced(Ledger(sample), "run", UNEVEN) as run:
        answer = price(run)
        result, partly, again = by_book(run, BOOK, likely, book_with(("idle_anyway = true", "idle_anyway = false")))
    assert (result.idle_anyway, result.kept, result.avoidable_usd) == (1, True, PRICE * 600 / 3600)
    assert result.charged_usd == result.usd + result.avoidable_usd
    assert partly.avoidable_usd == whole / 4 + Fraction(3, 4) * PRICE * 600 / 3600
    # A decision adds nothing where the book says of all time that it was there for the leases.
    assert (again.kept, again.avoidable_usd) == (False, whole)
    # Every column sums to the nano-dollar.
    terms = answer.table("terms")
    nano = {row[0]: int(row[1].value or 0) for row in (*terms.rows, *terms.footer)}
    assert len(terms.rows) == 9
    assert sum(nano[row[0]] for row in terms.rows) == nano["m"]
    assert nano["charged"] == nano["m"] + nano["avoidable device time"] > nano["m"]
    assert nano["borrowed time"] == 1440 * S
    assert "413 W from idle to full load, assumed" in rests_on(answer, "energy")
    assert "[marginal; USD, replay, EXAMPLE PRICES, not yours]" in printed(answer.parts.values())
    assert "In the recorded spans it would not" in terms.notes[0]
    assert plain("kv_recompute") == "kv recompute"


def terms_of_lending(change: str, after: str) -> str:
    """A book with every term above 0, whose lending, tariff and route change at MIDNIGHT_NS to what `after` says."""
    device = f'usd_per_hour = 2.3\ncommitment = "reserved"\nvalid_from = 2020-01-01\n{SOURCED}'
    tables = {
        "electricity": ("usd_per_kwh = 0.1\npue = 1.25\n", f"usd_per_kwh = 0.{after}1\npue = 1.25\n"),
        "transfer": ('route = "loopback"\nusd_per_gb = 0.02\n', f'route = "loopback"\nusd_per_gb = 0.{after}02\n'),
        "lending": tuple(
            f"idle_anyway = true\nscheduler_usd_per_lease_s = 0.{x}001\nkv_recompute_usd_per_million_tokens = 0.{x}3\n"
            f"violation_usd = 0.{x}7\n"
            for x in ("", after)
        ),
    }
    text = f'name = "n"\nversion = "1"\ncurrency = "USD"\n[[device]]\nclass = "owned"\n{device}'
    text += f'[[power]]\nclass = "owned"\nidle_w = 100\nload_w = 500\n{SOURCED}'
    text += f"[[tokens]]\ninput_usd_per_million = 1\noutput_usd_per_million = 1\n{SOURCED}"
    for table, (before, later) in tables.items():
        if change:
            text += f"[[{table}]]\n{before}valid_to = {change}\n{SOURCED}"
            text += f"[[{table}]]\n{later}valid_from = {change}\n{SOURCED}"
        else:
            text += f"[[{table}]]\n{before}{SOURCED}"
    return text


ONE, SAME, OTHER = (
    pricebook.parse(terms_of_lending(*given_), "book") for given_ in (("", ""), ("2026-06-02", ""), ("2026-06-02", "3"))
)


@st.composite
def borrows(draw: st.DrawFn) -> list[events.Event]:
    """A serving device around a midnight: leased and not, metered or not, with syncs, requests and cut turns."""
    at_ns = MIDNIGHT_NS - draw(st.integers(1, 120)) * S
    made: list[events.Event] = [replace(joined("s0", device_class="owned"), t_ns=at_ns)]
    for n in range(draw(st.integers(3, 8))):
        lease_id = draw(st.sampled_from([None, "L1", "L2", f"L{n}"]))
        times = [draw(st.integers(0, 40 * S)) for _ in range(4)]
        end_ns = at_ns + sum(times) + 1000
        if lease_id is not None:
            made += [lease_event(action, lease_id, ns) for action, ns in (("granted", at_ns), ("released", end_ns))]
        ns: dict[str, Any] = dict.fromkeys((f"{bucket}_ns" for bucket in events.BUCKETS), 0)
        ns |= dict(zip(("serving_ns", "rollout_ns", "sync_ns", "idle_ns"), times, strict=True), activation_ns=1000)
        made.append(events.DeviceSlice(device_id="s0", lease_id=lease_id, t0_ns=at_ns, t1_ns=end_ns, **ns))
        for k in range(draw(st.integers(0, 3))):
            when_ns = draw(st.integers(at_ns, end_ns - 1))
            answer = {"ttft_ns": draw(st.sampled_from([0, 2])), "at_us": when_ns // 1000 + 1}
            made.append(any_event.request(request_id=f"{n}/{k}", device_id="s0", lease_id=lease_id, **answer))
        if draw(st.booleans()):
            power_mw = draw(st.integers(0, 700_000))
            made.append(events.Power(device_id="s0", t0_ns=at_ns, t1_ns=end_ns, power_mw=power_mw, source="rapl"))
        if draw(st.booleans()):
            sent = {"lease_id": draw(st.sampled_from([None, lease_id])), "wire_bytes": draw(st.integers(0, 10**11))}
            sent |= {"source": "r", "route": "loopback", "at_us": draw(st.integers(at_ns, end_ns)) // 1000}
            made.append(any_event.sync(device_id="s0", **sent))
        if draw(st.booleans()):
            made += [cut_turn(n, attempt, lease_id, end_ns) for attempt in (0, 1)]
        at_ns = end_ns
    return made


def lease_event(action: Any, lease_id: str, ns: int) -> events.Lease:
    times = {"at_us": ns // 1000, "expires_at_us": ns // 1000 + 10**6}
    return any_event.lease(action=action, lease_id=lease_id, device_id="s0", **times)


def cut_turn(n: int, attempt: int, lease_id: str | None, ns: int) -> events.Turn:
    ids = {"trajectory_id": f"t{n}", "group_id": "g", "step": 1, "device_id": "s0", "lease_id": lease_id}
    tokens = {"prompt_tokens": 100 + n, "cached_tokens": n, "answer_tokens": 1}
    outcome = "completed" if attempt else "preempted"
    return any_event.turn(attempt=attempt, outcome=outcome, at_us=ns // 1000 + attempt, **ids, **tokens)


def fleet_of(made: list[events.Event]) -> Allocation:
    """The one device as `allocate` would have it; m takes nothing from it but the period."""
    slices = [event for event in made if isinstance(event, events.DeviceSlice)]
    t0_ns, t1_ns = slices[0].t0_ns, slices[-1].t1_ns
    idle = dict.fromkeys(TIME_BUCKETS, 0) | {"idle": t1_ns - t0_ns}
    return Allocation(devices=(device_cost("s0", "serving", t0_ns, t1_ns, device_class="owned", bucket_ns=idle),))


@given(borrows())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_equal_price_is_no_change_and_terms_sum_to_the_run(
    tmp_path_factory: pytest.TempPathFactory, made: list[events.Event]
) -> None:
    allocation = fleet_of(made)
    span = any_event.scale_down(
        device_id="s0", device_class="owned", t0_ns=allocation.period_ns[0] + 5 * S, t1_ns=MIDNIGHT_NS + 20 * S
    )
    root = write(tmp_path_factory.mktemp("ledger"), [*made, span], provenance="simulated")
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "run")
        whole, same, other = (marginal(connection, "run", allocation, prices) for prices in (ONE, SAME, OTHER))
    for name, term in whole.terms.items():
        assert term.usd == same.terms[name].usd, name
    assert whole.avoidable_usd == same.avoidable_usd == other.avoidable_usd
    assert other.borrowed_ns == whole.borrowed_ns
    assert sum(other.nano_usd.values()) == round(other.usd * 10**9)
    for meter in other.metered.values():
        readings = [event for event in made if isinstance(event, events.Power)]
        assert meter.energy_mw_ns == sum(r.power_mw * (r.t1_ns - r.t0_ns) for r in readings)


@given(borrows())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
def test_each_side_of_a_change_is_charged_at_its_own_price(
    tmp_path_factory: pytest.TempPathFactory, made: list[events.Event]
) -> None:
    """By hand: a sync at its instant, a lease and the assumed power of a slice by the time on each side."""
    made = [event for event in made if not isinstance(event, events.Power)]
    allocation = fleet_of(made)
    assume(allocation.period_ns[1] > MIDNIGHT_NS)
    root = write(tmp_path_factory.mktemp("ledger"), made, provenance="simulated")
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "run")
        result = marginal(connection, "run", allocation, OTHER)
        closed = "SELECT epoch_ns(granted_at), epoch_ns(closed_at) FROM lease WHERE closed_at > granted_at"
        spans = connection.execute(closed).fetchall()
    rates = {False: Fraction(2, 100), True: Fraction(302, 1000)}
    assert result.terms["transfer"].usd == sum(
        rates[e.at_us * 1000 >= MIDNIGHT_NS] * e.wire_bytes / 10**9 for e in made if isinstance(e, events.Sync)
    )
    sides_ns = [(max(0, min(t1, MIDNIGHT_NS) - t0), max(0, t1 - max(t0, MIDNIGHT_NS))) for t0, t1 in spans]
    scheduler = sum(Fraction(1, 1000) * before + Fraction(3001, 10_000) * after for before, after in sides_ns)
    assert result.terms["scheduler"].usd == scheduler / S
    curve, usd = OTHER.power_of("owned"), Fraction(0)
    for e in made:
        if isinstance(e, events.DeviceSlice):
            ns = e.t1_ns - e.t0_ns
            base, busy = Fraction(e.serving_ns, ns), Fraction(ns - e.idle_ns, ns)
            before = Fraction(max(0, min(e.t1_ns, MIDNIGHT_NS) - e.t0_ns), ns)
            tariff = before * Fraction(1, 10) + (1 - before) * Fraction(31, 100)
            usd += Fraction(curve.load_w - curve.idle_w) * (busy - base) * ns / S * Fraction(5, 4) / 3_600_000 * tariff
    assert result.terms["energy"].usd == usd


def test_tokens_without_device_time_have_prices_too(write_ledger: Any) -> None:
    ids = {"trajectory_id": "t", "group_id": "g", "step": 1, "policy_version": 3}
    tokens = {"prompt_tokens": 2_000_000, "output_tokens": 5, "answer_tokens": 1}
    turns = [
        any_event.turn(device_id=name, outcome=outcome, attempt=n, at_us=T0_NS // 1000 + n, **ids, **tokens)
        for n, (name, outcome) in enumerate((("s", "preempted"), ("r", "completed")))
    ]
    begun = [events.Run(action="started", name="n", at_us=T0_NS // 1000), joined("s"), joined("r", "rollout")]
    root = write_ledger([*begun, *turns], run_id="run")
    prices = book_with(("kv_recompute_usd_per_million_tokens = 0", "kv_recompute_usd_per_million_tokens = 3"))
    allocation = allocate(charges.price(Ledger(root), BOOK, run_id="run"))
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "run")
        assert marginal(connection, "run", allocation, prices).terms["kv_recompute"].usd == 6


def test_a_term_without_data_is_no_zero(sample: Path, write_ledger: Any) -> None:
    made = [
        joined("s9"),
        work("s9", 0, serving=1800),
        events.Run(action="started", name="alone", at_us=T0_NS // 1000),
        any_event.request(
            request_id="q", device_id="s9", lease_id="L", outcome="failed", ttft_ns=None, e2e_ns=S, at_us=us(9)
        ),
    ]
    write_ledger(made, root=sample, writer="alone", run_id="alone")
    answer = section(sample, price, "alone", UNEVEN)
    provision = answer.table("terms").row("provision")
    assert (provision["in all"].value, provision["per device-hour"].value) == (None, None)
    assert provision["in all"].text.startswith("not enough data")
    assert rests_on(answer, "m").startswith("leaves out provision: not enough data; leaves out prefix cache")
    assert answer.figure("terms", "m", "per device-hour").text == "not enough data: no rollout ran on a serving device"
