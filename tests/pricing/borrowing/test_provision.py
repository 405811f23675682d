from contextlib import closing
from datetime import date, timedelta
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing.provision import (
    ACCRUED,
    BREAK_EVEN_TIME,
    NOT_PROVIDED,
    PENALTY,
    REALISED,
    accrue,
    provision,
    rates,
    roll_forward,
)
from rose.pricing.marginal_cost.missed_budgets import NO_PENALTY
from rose.pricing.query import rows, set_variables, snapshot
from tests.long_form import usual
from tests.pricing import any_event, reference
from tests.pricing.closing.conftest import write
from tests.pricing.conftest import T0_NS, S, joined, section, work
from tests.pricing.marginal_cost.lending_books import penalty

DAY = date(2026, 6, 1)
H = 10 * S
DAY_S = 86_400
usd = st.fractions(-5, 5, max_denominator=10**10)


def risk(load_bin: int, windows: int, bursts: int, day: date = DAY) -> dict[str, Any]:
    return {"day": day, "bin": load_bin, "windows": windows, "bursts": bursts}


def burst(load_bin: int, lent: bool, bursts: int, misses: int, day: date = DAY) -> dict[str, Any]:
    return {"day": day, "bin": load_bin, "lent": lent, "bursts": bursts, "misses": misses}


def lent(seconds: int, load_bin: int | None, day: date = DAY) -> dict[str, Any]:
    return {"day": day, "bin": load_bin, "lent_ns": seconds * S}


def test_the_provision_of_a_lent_second() -> None:
    # 10 bursts in 100 windows of 10 s, and 3 more misses in each while lent; $0.5 a miss.
    risks, bursts = [risk(1, 100, 10)], [burst(1, True, 5, 20), burst(1, False, 5, 5)]
    rates_by_bin = rates(risks, bursts)
    assert rates_by_bin[1].hazard_per_s == Fraction(1, 100)
    assert rates_by_bin[1].extra == 3
    assert rates_by_bin[1].misses_per_s is not None
    expected = reference.provision_usd_per_device_s(burst_hazard=0.01, extra_violations=3, penalty_usd=0.5)
    assert float(rates_by_bin[1].misses_per_s) * 0.5 == pytest.approx(expected)
    assert (rates_by_bin[1].pooled, rates_by_bin[1].why) == ((), None)
    (day,) = accrue([lent(60, 1), lent(30, 4)], risks, bursts, penalty("0.5"))
    # In the top fifth the burst is there already.
    assert day.usd == Fraction(9, 10)
    assert not day.from_earlier_days


def test_a_bin_with_too_few_bursts_takes_those_of_all_and_says_so() -> None:
    bursts = [burst(1, True, 5, 20), burst(1, False, 9, 9), burst(2, True, 1, 1)]
    rates_by_bin = rates([risk(1, 100, 10), risk(2, 20, 2)], bursts)
    assert rates_by_bin[2].pooled == ("hazard", "extra")
    assert (rates_by_bin[2].hazard_per_s, rates_by_bin[2].extra) == (Fraction(12, 1200), Fraction(21, 6) - 1)
    assert (rates_by_bin[1].pooled, rates_by_bin[0].windows) == ((), 0)


@pytest.mark.parametrize(
    ("risks", "bursts", "words"),
    [
        ([], [], "have 0"),
        ([risk(0, 29, 5)], [burst(0, True, 9, 9), burst(0, False, 9, 9)], "have 29"),
        ([risk(0, 90, 0)], [], "have 0 and 0"),
        ([risk(0, 90, 9)], [burst(0, True, 9, 9)], "have 9 and 0"),
    ],
)
def test_too_little_is_said_and_never_zero(risks: list[Any], bursts: list[Any], words: str) -> None:
    rate = rates(risks, bursts)[0]
    assert rate.misses_per_s is None
    assert str(rate.why).startswith("not enough data")
    assert words in str(rate.why)
    (day,) = accrue([lent(10, 0)], risks, bursts, penalty("1"))
    assert (day.usd, day.why) == (None, rate.why)
    (free,) = accrue([lent(10, 0)], risks, bursts, penalty("0"))
    assert (free.usd, free.why) == (None, NO_PENALTY)


def test_what_comes_later_changes_no_accrual() -> None:
    days = [DAY + timedelta(days=n) for n in range(3)]
    risks = [risk(0, 50, 5 + n, day) for n, day in enumerate(days)]
    bursts = [
        burst(0, side, 5, (3 + n) * 5 if side else 5, day) for n, day in enumerate(days) for side in (True, False)
    ]
    lents = [lent(100, 0, day) for day in days] + [lent(7, None, days[2])]
    accruals = accrue(lents, risks, bursts, penalty("1"))
    assert [accrual.from_earlier_days for accrual in accruals] == [False, True, True]
    assert [accrual.unknown_ns for accrual in accruals] == [0, 0, 7 * S]
    for n in range(3):
        cut = [[row for row in made if row["day"] <= days[n]] for made in (risks, bursts, lents)]
        assert accrue(cut[2], cut[0], cut[1], penalty("1"))[-1] == accruals[n]
    # The second day has the first one's rates: 5 bursts in 500 s, 2 more misses each.
    assert accruals[1].usd == Fraction(5, 500) * 2 * 100


def test_a_day_is_held_to_the_end_of_the_next() -> None:
    days = [DAY + timedelta(days=n) for n in range(4)]
    accrued = dict(zip(days, map(Fraction, (10, 5, 0, 0)), strict=True))
    balances = roll_forward(accrued, {days[1]: Fraction(4), days[3]: Fraction(2)})
    assert [b.released for b in balances] == [0, 6 * 10**9, 5 * 10**9, 0]
    # The last day's cost was provided for by nobody and stays as a debt.
    assert [b.closing for b in balances] == [10 * 10**9, 5 * 10**9, 0, -2 * 10**9]
    with pytest.raises(ValueError, match="no accrual"):
        roll_forward({days[0]: Fraction(1), days[1]: None}, {})


def windows_of(slices: list[tuple[int, int, int, bool]]) -> dict[int, tuple[int, bool]]:
    """Bin and lent by window number, from (t0, t1, serving, lent): the definition, without SQL."""
    windows: dict[int, tuple[int, bool]] = {}
    for number in range(T0_NS // H, T0_NS // H + 40):
        covered = serving = held = Fraction(0)
        for t0, t1, busy, is_lent in slices:
            ns = min(t1, (number + 1) * H) - max(t0, number * H)
            if ns > 0:
                covered += ns
                serving += Fraction(busy * ns, t1 - t0)
                held += ns if is_lent else 0
        if 2 * covered >= H:
            windows[number] = (min(4, int(5 * serving / covered)), 2 * held >= covered)
    return windows


seconds = st.sampled_from([1, 3, 5, 10, 10, 10, 20, 30])
tenths = st.sampled_from([0, 1, 3, 5, 7, 8, 10, 10, 10])
gaps = st.sampled_from([0, 0, 0, 0, 4, 20])
slices = st.lists(st.tuples(seconds, tenths, st.booleans(), gaps), min_size=5, max_size=18)


@given(slices, st.lists(st.tuples(st.integers(0, 360), st.booleans()), max_size=12))
@settings(max_examples=usual(3, long=20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_windows_and_bursts_are_as_defined(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, int, bool, int]], asked: list[tuple[int, bool]]
) -> None:
    made: list[events.Event] = [joined("s0")]
    placed: list[tuple[int, int, int, bool]] = []
    at_ns = T0_NS
    for seconds, tenths, is_lent, gap in drawn:
        t1_ns = at_ns + seconds * S
        busy = seconds * S * tenths // 10
        placed.append((at_ns, t1_ns, busy, is_lent))
        lease_id = "L" if is_lent else None
        made.append(work("s0", (at_ns - T0_NS) / S, lease_id, serving=busy / S, idle=seconds - busy / S))
        at_ns = t1_ns + gap * S
    made += [asked_for(n, second, late) for n, (second, late) in enumerate(asked)]
    root = write(tmp_path_factory.mktemp("ledger"), made, provenance="simulated")
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "run")
        set_variables(connection, run_id="run", horizon_ns=H)
        rows(connection, "borrowing/window_pieces")
        counted = rows(connection, "borrowing/bursts")
        figures = {what: [row for row in counted if row["what"] == what] for what in ("risk", "burst", "lent")}
    windows = windows_of(placed)
    at_risk = [(b, windows[n + 1][0] == 4) for n, (b, _) in windows.items() if b < 4 and n + 1 in windows]
    assert {(r["bin"], r["windows"], r["bursts"]) for r in figures["risk"]} == {
        (b, len(flags), sum(flags)) for b, flags in by_key(at_risk).items()
    }
    bursts = []
    for n, (b, _) in windows.items():
        if b == 4 and windows.get(n - 1, (4, False))[0] < 4:
            end = next(m for m in range(n, n + 41) if windows.get(m, (0, False))[0] != 4)
            misses = sum(late and n * H <= T0_NS + second * S < end * H for second, late in asked)
            bursts.append((windows[n - 1], misses))
    assert {((r["bin"], r["lent"]), r["bursts"], r["misses"]) for r in figures["burst"]} == {
        (key, len(flags), sum(flags)) for key, flags in by_key(bursts).items()
    }
    assert sum(row["lent_ns"] for row in figures["lent"]) == sum(t1 - t0 for t0, t1, _, on in placed if on)


def by_key(pairs: list[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    ordered = sorted(pairs, key=lambda pair: pair[0])
    return {key: [value for _, value in group] for key, group in groupby(ordered, key=lambda pair: pair[0])}


def asked_for(n: int, second: int, late: bool) -> events.Request:
    """A request that arrives at a second after T0; its event comes when it is answered, a second later."""
    times = {"ttft_ns": 2 * S if late else 1, "e2e_ns": S, "ttft_budget_ns": S, "tpot_budget_ns": S}
    return any_event.request(request_id=f"q{n}", device_id="s0", at_us=T0_NS // 1000 + (second + 1) * 10**6, **times)


def test_a_request_counts_where_it_arrived_and_not_where_it_ended(tmp_path: Path) -> None:
    made: list[events.Event] = [joined("s0"), work("s0", 0, serving=1, idle=9), work("s0", 10, serving=9, idle=1)]
    # Each is answered a second after it came: in the next slice, after the last one, and one came before the first.
    made += [asked_for(n, second, late=True) for n, second in enumerate((9, 19, 20, -1))]
    with closing(catalog.connect(write(tmp_path / "ledger", made, provenance="simulated"))) as connection:
        set_variables(connection, run_id="run")
        counted = rows(connection, "borrowing/violations_by_load")
    figures = {(str(row["day"]), row["load_bin"]): row["requests"] for row in counted}
    assert figures == {("2026-05-31", None): 1, ("2026-06-01", 0): 1, ("2026-06-01", 4): 1, ("2026-06-01", None): 1}


def bursty() -> list[events.Event]:
    """Three days of a serving device: every 100 s a burst of 10 s after 90 s at half load, lent every other time.

    A request comes in each burst; while lent it misses its budget. On the second day none misses.
    """
    made: list[events.Event] = [events.Run(action="started", name="bursty", at_us=T0_NS // 1000), joined("s0")]
    for day in range(3):
        for n in range(12):
            t0_ns = T0_NS + (day * DAY_S + n * 100) * S
            lease_id = f"L{day}-{n}" if n % 2 else None
            late = bool(lease_id) and day != 1
            at_s, other = day * DAY_S + n * 100, "rollout" if lease_id else "idle"
            made += [work("s0", at_s, lease_id, serving=45, **{other: 45}), work("s0", at_s + 90, lease_id, serving=10)]
            answer = {"ttft_ns": 2 if late else 1, "e2e_ns": S, "at_us": (t0_ns + 96 * S) // 1000}
            made.append(any_event.request(request_id=f"{day}/{n}", device_id="s0", lease_id=lease_id, **answer))
    return made


@pytest.fixture(scope="module")
def three_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bursty") / "ledger", bursty(), provenance="replay")


def test_three_days_by_hand(three_days: Path) -> None:
    answer = section(three_days, provision, "run", penalty("3").book)
    half = answer.table("rates").row("40 to 60%")
    # 12 bursts a day, each after 9 windows of 10 s at half load.
    assert (half["windows"].value, half["bursts"].value) == (3 * 12 * 9, 36)
    assert half["bursts an hour"].value == pytest.approx(3600 / 90)
    # Of 18 lent bursts 12 had a miss, of 18 others none.
    assert half["extra misses of a burst"].value == pytest.approx(12 / 18)
    days = answer.table("days").records()
    assert [row["day"] for row in days] == ["2026-06-01", "2026-06-02", "2026-06-03"]
    # Six lent stretches of 90 s a day, at 1/90 bursts a second and one miss each by what the first day showed.
    usd = 10**9
    assert (days[0]["opening"].value, days[0]["rates of"]) == (0, "earlier days and this one")
    assert days[1]["rates of"] == "earlier days"
    # By the third day half of the lent bursts had shown no miss.
    assert [row["accrued"].value for row in days] == [18 * usd, 18 * usd, 9 * usd]
    assert [row["realised"].value for row in days] == [18 * usd, 0, 18 * usd]
    assert [row["released"].value for row in days] == [0, 0, 0]
    assert [row["closing"].value for row in days] == [0, 18 * usd, 9 * usd]
    assert answer.figure("totals", ACCRUED).value == 45 * usd
    realised = answer.figure("totals", REALISED)
    assert (realised.value, realised.low) == (36 * usd, None)
    assert "confounded: leases were never withheld at random" in (realised.no_interval or "")
    assert answer.figure("totals", NOT_PROVIDED).value == 0
    assert answer.figure("totals", BREAK_EVEN_TIME).text.startswith("not enough data")
    assert answer.figure("totals", PENALTY).value == 3 * usd


def test_too_little_is_said_and_nothing_is_booked(sample_kept: Path) -> None:
    answer = section(sample_kept, provision, "run", penalty("3").book)
    # The sample's slices carry no lease, so nothing was lent by them.
    accrued = answer.figure("totals", ACCRUED)
    assert (accrued.value, accrued.text) == (None, "nothing was lent")
    rates = answer.table("rates").records()
    assert all(row["provision per lent device-hour"].value is None for row in rates)
    assert "not enough data" in rates[0]["extra misses of a burst"].text
    assert answer.figure("totals", REALISED).value == 3 * 10**9
    assert answer.figure("totals", BREAK_EVEN_TIME).value is not None
    (day,) = answer.table("days").records()
    assert (day["opening"].value, day["closing"].value) == (None, None)


def test_the_break_even_has_its_definition_in_the_glossary() -> None:
    glossary = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert glossary.count(f"| {BREAK_EVEN_TIME} | ") == 1
