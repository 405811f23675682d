import hashlib
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing.marginal_tables import price
from rose.pricing.borrowing.provision import REALISED, provision
from rose.pricing.borrowing.risk import without_prices
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section
from tests.pricing import any_event
from tests.pricing.conftest import T0_NS, S, WriteLedger, rests_on, section, us
from tests.pricing.marginal_cost.lending_books import PRICED

WINDOW_S, WASHOUT_S, WINDOWS, SHARE = 100, 40, 60, 0.4
WINDOW_NS = WINDOW_S * S
FIRST = T0_NS // WINDOW_NS
MS = 10**6
BUDGET_MS = 1000
#: Dollars of a miss, and of a request by the share of its budget.
MISS_USD, CURVE = Fraction(1, 1000), [(Fraction(1, 2), Fraction(0)), (Fraction(1), Fraction(1, 2000))]


def drawn(number: int) -> float:
    return int(hashlib.sha256(f"3/s0/{number}".encode()).hexdigest()[:13], 16) / 2**52


WITHHELD = [drawn(FIRST + n) < SHARE for n in range(WINDOWS)]


def window(n: int, **changes: Any) -> events.Holdout:
    times: Any = {"at_us": us(n * WINDOW_S), "t0_ns": (FIRST + n) * WINDOW_NS, "t1_ns": (FIRST + n + 1) * WINDOW_NS}
    times |= {"window_ns": WINDOW_NS, "washout_ns": WASHOUT_S * S}
    lot = {"withheld": WITHHELD[n], "draw": drawn(FIRST + n), "holdout_share": SHARE, "holdout_seed": 3}
    return events.Holdout(device_id="s0", **(times | lot | changes))


def asked(second: int) -> dict[str, Any]:
    """A request that arrives at a second of the run: what it took, and how much of its prompt was cached."""
    n = second // WINDOW_S
    clean = WITHHELD[n] and (second % WINDOW_S >= WASHOUT_S or (n > 0 and WITHHELD[n - 1]))
    # Slower, and more often late, where leases are or were in force; now and then late without.
    ttft_ms = 1500 if second % (13 if clean else 3) == 0 else 300 + 100 * (second % 4) + (0 if clean else 200)
    return {"second": second, "clean": clean, "ttft_ms": ttft_ms, "cached": 50 if clean else 20 + second % 5}


ASKED = [asked(second) for second in range(3, WINDOWS * WINDOW_S, 7)]


def cost(ttft_ms: int) -> Fraction:
    share = Fraction(ttft_ms, BUDGET_MS)
    if share > 1:
        return MISS_USD
    (low, from_usd), (high, to_usd) = CURVE
    return from_usd + max(Fraction(0), share - low) / (high - low) * (to_usd - from_usd)


def request(one: dict[str, Any], *, says: bool = True) -> events.Request:
    e2e_ns = one["ttft_ms"] * MS
    lent = not WITHHELD[one["second"] // WINDOW_S]
    ids = {"request_id": f"q{one['second']}", "lease_id": f"L{one['second'] // WINDOW_S}" if lent else None}
    times = {"at_us": us(one["second"]) + e2e_ns // 1000, "ttft_ns": e2e_ns, "e2e_ns": e2e_ns}
    budgets = {"ttft_budget_ns": BUDGET_MS * MS, "tpot_budget_ns": MS}
    tokens = {"prompt_tokens": 100, "cached_tokens": one["cached"] if says else None}
    return any_event.request(device_id="s0", **ids, **times, **budgets, **tokens)


def run(
    *, windows: list[events.Holdout] | None = None, says: bool = True, beside: Mapping[str, int] | None = None
) -> list[events.Event]:
    """A run of 100 minutes on one serving device, whose leases last for a window each. `beside`: seconds of a lent
    window by field of a slice, in place of the overlap."""
    end_s = WINDOWS * WINDOW_S
    device: dict[str, Any] = {"device_id": "s0", "pool": "serving", "device_class": "h100-sxm"}
    made: list[events.Event] = [
        events.Run(action="started", name="held out", at_us=us(0)),
        events.Device(action="joined", t_ns=T0_NS, at_us=us(0), **device),
        events.Device(action="left", t_ns=T0_NS + end_s * S, at_us=us(end_s), **device),
        any_event.engine(at_us=us(0), device_id="s0", engine_id="r", kv_bytes=2 << 30, memory_mechanism="budget"),
        *(
            any_event.sync(at_us=us(seconds), device_id="s0", wire_bytes=0, dense_bytes=0, route="loopback")
            for seconds in (10, 20, 3000)
        ),
        *([window(n) for n in range(WINDOWS)] if windows is None else windows),
        *(request(one, says=says) for one in ASKED),
    ]
    for n, withheld in enumerate(WITHHELD):
        t0_ns = T0_NS + n * WINDOW_NS
        seconds = (30, 0, 70, 0) if withheld else (35, 45, 20, 10)
        names = ("serving_ns", "rollout_ns", "idle_ns", "overlap_ns")
        work = {name: second * S for name, second in zip(names, seconds, strict=True)}
        if beside is not None:
            work |= {"overlap_ns": 0, **{name: (0 if withheld else second) * S for name, second in beside.items()}}
        buckets: dict[str, int] = {f"{bucket}_ns": 0 for bucket in events.BUCKETS} | work
        lease_id = None if withheld else f"L{n}"
        # A window's first slice ends with its wash-out.
        for t0, part in ((t0_ns, 2), (t0_ns + WASHOUT_S * S, 3)):
            times = {"at_us": t0 // 1000, "t0_ns": t0, "t1_ns": t0 + part * 20 * S}
            times |= {name: ns * part // 5 for name, ns in buckets.items()}
            made.append(events.DeviceSlice(device_id="s0", lease_id=lease_id, **times))
        if lease_id is not None:
            end_us = us((n + 1) * WINDOW_S)
            for action, at_us in (("granted", us(n * WINDOW_S)), ("released", end_us)):
                terms = {"lease_id": lease_id, "device_id": "s0", "expires_at_us": end_us}
                made.append(any_event.lease(action=action, at_us=at_us, **terms))
    return made


def in_all(answer: Section, term: str) -> Any:
    return answer.figure("terms", term, "in all")


def test_every_term_is_measured_against_withheld_windows(held_out_run: PricedRun) -> None:
    document = price(held_out_run)
    lent = [one for one in ASKED if not one["clean"]]
    alone = [one for one in ASKED if one["clean"]]
    usd = sum(cost(one["ttft_ms"]) for one in lent)
    usd -= Fraction(len(lent), len(alone)) * sum(cost(one["ttft_ms"]) for one in alone)
    harm = in_all(document, "provision")
    assert (harm.value, harm.basis) == (round(usd * 10**9), "measured")
    assert harm.low < harm.value < harm.high
    late = [sum(one["ttft_ms"] > BUDGET_MS for one in side) for side in (lent, alone)]
    extra = late[0] - late[1] * len(lent) / len(alone)
    reason = rests_on(document, "provision")
    assert f"{extra:+.1f} missed budgets against {sum(WITHHELD)} windows" in reason
    assert f"latency within the budget by the book's curve; {len(lent):,} requests compared" in reason
    # Half a prompt is cached, and of it some fell out: $1 a million.
    out = Fraction(sum(one["cached"] for one in alone), len(alone)) * len(lent) - sum(one["cached"] for one in lent)
    cache = in_all(document, "prefix cache")
    assert cache.value == round(out * 1000)
    assert cache.low < cache.value < cache.high
    # 40 s of 100 in lent windows, with the half of the overlap that slices give to rollouts, and 30 s in others.
    slowed = in_all(document, "interference")
    assert slowed.value > 0
    assert slowed.low < slowed.value < slowed.high
    held_s = sum(WITHHELD) * WINDOW_S
    assert in_all(document, "held memory").value == round(Fraction(2 * held_s * 10**7, 3600))
    assert in_all(document, "publishing").value == 750_000_000
    assert in_all(document, "m").low is not None
    assert rests_on(document, "m") == ""
    set_aside = provision(held_out_run)
    assert set_aside.figure("totals", REALISED) == harm
    assert sum(day["realised"].value or 0 for day in set_aside.table("days").records()) == harm.value
    for row in set_aside.table("rates").records():
        assert row["extra misses of a burst"].low is None


def test_a_request_that_stands_for_two_is_harmed_twice(write_ledger: WriteLedger, held_out_run: PricedRun) -> None:
    """Users' own requests, of which the engine sampled one in two; the run names no trace."""
    made = [replace(one, source="engine", requests=2) if isinstance(one, events.Request) else one for one in run()]
    sample, single = section(write_ledger(made), price, "run", PRICED), price(held_out_run)
    for term in ("provision", "prefix cache"):
        harm, half = in_all(sample, term), in_all(single, term)
        assert (harm.value, harm.basis) == (pytest.approx(2 * half.value, abs=2), "measured")
        # No more is known than from the rows themselves.
        assert harm.high - harm.low >= 2 * (half.high - half.low) - 2
    assert f"{2 * sum(not one['clean'] for one in ASKED):,} requests compared" in rests_on(sample, "provision")


def test_a_ledger_without_withheld_windows_is_confounded_and_shows_no_interval(never_withheld_run: PricedRun) -> None:
    document = price(never_withheld_run)
    harm = in_all(document, "provision")
    assert harm.value is not None
    assert (harm.low, harm.high) == (None, None)
    assert harm.no_interval.startswith("confounded: leases were never withheld at random")
    assert rests_on(document, "provision").startswith("confounded")
    assert "provision: confounded" in in_all(document, "m").no_interval
    cache = in_all(document, "prefix cache")
    assert (cache.value, cache.basis) == (None, "absent")
    assert rests_on(document, "prefix cache").startswith("confounded")
    # Half of the overlap, as the slices divide it.
    slowed = in_all(document, "interference")
    assert (slowed.basis, slowed.value) == ("assumed", round(WITHHELD.count(False) * 5 * Fraction(2 * 10**9, 3600)))
    assert rests_on(document, "m") == "leaves out prefix cache: neither measured nor priced"


@pytest.mark.parametrize(
    ("beside", "seconds", "basis"),
    [
        ({"beside_ns": 8, "beside_work_ns": 4, "delayed_ns": 6}, 6, "measured"),
        ({"beside_ns": 8, "beside_work_ns": 4, "delayed_ns": 6, "overlap_ns": 10}, 5 + 6, "partly measured"),
        ({"beside_ns": 0, "beside_work_ns": 0, "delayed_ns": 0, "overlap_ns": 10}, 5, "assumed"),
    ],
)
def test_delay_beside_rollouts_is_priced_as_measured(
    write_ledger: WriteLedger, beside: dict[str, int], seconds: int, basis: str
) -> None:
    document = section(write_ledger(run(windows=[], beside=beside)), price, "run", PRICED)
    slowed, reason = in_all(document, "interference"), rests_on(document, "interference")
    windows = WITHHELD.count(False)
    assert (slowed.basis, slowed.value) == (basis, round(windows * seconds * Fraction(2 * 10**9, 3600)))
    assert (slowed.low, slowed.no_interval is None) == (None, False)
    assert (f"{windows * 6:,.1f} s (measured) that steps beside rollouts took longer" in reason) == (basis != "assumed")
    assert ("half of the time that both worked" in reason) == (basis != "measured")


def test_a_delay_told_after_its_lease_ended_counts(write_ledger: WriteLedger, never_withheld_run: PricedRun) -> None:
    made = run(windows=[])
    late = next(one for one in made if isinstance(one, events.DeviceSlice) and one.lease_id is None)
    made[made.index(late)] = replace(late, delayed_ns=S)
    before, after = price(never_withheld_run), section(write_ledger(made), price, "run", PRICED)
    added = in_all(after, "interference").value - in_all(before, "interference").value
    assert added == pytest.approx(2 * 10**9 / 3600, abs=1)
    assert in_all(after, "energy").value == in_all(before, "energy").value


def test_busy_time_against_withheld_windows_contains_the_delay_once(
    write_ledger: WriteLedger, held_out_run: PricedRun
) -> None:
    """Serving works for 40 s of a lent window: 35 s and 5 s of rollouts' work beside it, as with the overlap."""
    beside = {"beside_ns": 10, "beside_work_ns": 5, "delayed_ns": 7}
    document = section(write_ledger(run(beside=beside)), price, "run", PRICED)
    assert in_all(document, "interference") == in_all(price(held_out_run), "interference")


WRONG = [
    ([window(n, draw=drawn(FIRST + n) / (2 if n == 5 else 1)) for n in range(WINDOWS)], "1 of 60 windows are not"),
    ([window(n) for n in range(12)], "requests came in"),
    # More is withheld from the middle on, when load may be another: windows of both are no one sample.
    (
        [
            window(n) if n < 30 else window(n, holdout_share=0.6, withheld=drawn(FIRST + n) < 0.6)
            for n in range(WINDOWS)
        ],
        "share 0.4, seed 3, windows of 100 s, wash-out of 40 s; share 0.6, seed 3, windows of 100 s, wash-out of 40 s",
    ),
]


@pytest.mark.parametrize(("windows", "why"), WRONG)
def test_windows_that_were_not_drawn_or_are_few_say_nothing(
    write_ledger: WriteLedger, windows: list[events.Holdout], why: str
) -> None:
    confounded = without_prices(Ledger(write_ledger(run(windows=windows))), "run").confounded
    assert str(confounded).startswith("confounded: ")
    assert why in str(confounded)


@pytest.mark.parametrize(("to_s", "confounded"), [(WASHOUT_S, False), (WASHOUT_S + 0.001, True)])
def test_a_lease_after_the_wash_out_of_a_withheld_window_is_said(
    write_ledger: WriteLedger, to_s: float, confounded: bool
) -> None:
    n = next(n for n in range(1, WINDOWS) if WITHHELD[n] and not WITHHELD[n - 1])
    times = {"at_us": us(n * WINDOW_S), "expires_at_us": us(n * WINDOW_S + to_s)}
    granted = any_event.lease(device_id="s0", lease_id="X", **times)
    says = f"confounded: a lease was in force in 1 of {sum(WITHHELD)} windows in which leases were to be withheld"
    assert without_prices(Ledger(write_ledger([*run(), granted])), "run").confounded == (says if confounded else None)


def test_what_serving_did_not_say_and_the_book_does_not_price_is_absent_and_not_0(write_ledger: WriteLedger) -> None:
    document = section(write_ledger(run(says=False)), price, "run")
    figures = {row["term"]: row["in all"] for row in document.table("terms").records()}
    absent = {name for name, figure in figures.items() if figure.basis == "absent"}
    assert absent == {"provision", "prefix cache", "interference", "held memory", "publishing"}
    assert all(figures[name].value is None for name in absent)
    assert "--enable-cache-report" in rests_on(document, "prefix cache")
    assert "held_memory_usd_per_gib_hour" in rests_on(document, "held memory")
    assert "leaves out provision, prefix cache, interference, held memory, publishing" in rests_on(document, "m")
