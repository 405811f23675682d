from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from rose import events
from rose.pricing.borrowing.marginal_tables import price
from rose.pricing.table import Section
from tests.pricing import any_event, conftest
from tests.pricing.conftest import T0_NS, S, WriteLedger, rests_on, section, us
from tests.pricing.marginal_cost.lending_books import PRICED
from tests.pricing.marginal_cost.test_harm import ASKED, WINDOW_NS, WINDOW_S, WINDOWS, WITHHELD, request, run

END_S = WINDOWS * WINDOW_S
Told = dict[str, tuple[Any, ...]]


def number(event: events.Event) -> int | None:
    if isinstance(event, events.Holdout | events.DeviceSlice):
        return (event.t0_ns - T0_NS) // WINDOW_NS
    if isinstance(event, events.Request):
        return int(event.request_id[1:]) // WINDOW_S
    return int(str(event.lease_id)[1:]) if isinstance(event, events.Lease) else None


MADE = run()
OF_WINDOW = [[event for event in MADE if number(event) == n] for n in range(WINDOWS)]


def joined(device_id: str, at_s: int) -> list[events.Event]:
    memory: dict[str, Any] = {"kv_bytes": 2 << 30, "memory_mechanism": "budget"}
    return [
        replace(conftest.joined(device_id), t_ns=T0_NS + at_s * S, at_us=us(at_s)),
        any_event.engine(at_us=us(at_s), device_id=device_id, engine_id=f"r-{device_id}", **memory),
    ]


def power(of: events.DeviceSlice) -> events.Power:
    n = (of.t0_ns - T0_NS) // WINDOW_NS
    power_mw = (300_000 if of.lease_id is None else 600_000) + 1000 * n
    return any_event.power(device_id=of.device_id, t0_ns=of.t0_ns, t1_ns=of.t1_ns, power_mw=power_mw)


def windows(numbers: Iterable[int], whose: Callable[[int], str | None]) -> Iterator[events.Event]:
    """What is recorded of the device s0 in some windows, each of them the time of an RL run."""
    for n in numbers:
        for event in OF_WINDOW[n]:
            if isinstance(event, events.DeviceSlice):
                yield replace(event, rollout_run_id=whose(n))
                yield power(event)
            elif isinstance(event, events.Lease):
                yield replace(event, rl_run_id=whose(n))
            else:
                yield event


def by_turns(n: int) -> str:
    return "blue" if n % 2 else "red"


def fleet(whose: Callable[[int], str | None], numbers: Iterable[int] = range(WINDOWS)) -> Iterator[events.Event]:
    """A fleet of s0, lent to two RL runs, and of s1, which is lent to nobody and late with all that it serves."""
    yield events.Run(action="started", name="lab", at_us=us(0))
    for run_id in ("red", "blue"):
        yield events.Run(action="started", name="grpo", run_id=run_id, at_us=us(0))
    yield from joined("s0", 0)
    yield from joined("s1", 0)
    buckets: dict[str, Any] = {f"{bucket}_ns": 0 for bucket in events.BUCKETS}
    buckets |= {"serving_ns": END_S * S // 2, "idle_ns": END_S * S // 2}
    yield events.DeviceSlice(device_id="s1", t0_ns=T0_NS, t1_ns=T0_NS + END_S * S, at_us=us(0), **buckets)
    for one in ASKED:
        late = replace(request({**one, "ttft_ms": 1500}), device_id="s1", lease_id=None)
        yield replace(late, request_id=f"s1-{late.request_id}")
    yield from windows(numbers, whose)


def alone(numbers: range) -> Iterator[events.Event]:
    """A run that has s0 to itself, and for no longer than some windows."""
    from_s, to_s = numbers.start * WINDOW_S, numbers.stop * WINDOW_S
    yield events.Run(action="started", name="grpo", at_us=us(from_s))
    yield from joined("s0", from_s)
    yield from windows(numbers, lambda _: None)
    yield replace(conftest.joined("s0"), action="left", t_ns=T0_NS + to_s * S, at_us=us(to_s))


def told(answer: Section) -> Told:
    """What is said of each term, without the period that it is stamped with."""
    rows = answer.table("terms").rows
    return {name: (cell.value, cell.low, cell.high, cell.basis, reason) for name, cell, _, reason in rows}


def test_a_run_costs_what_its_own_time_does(write_ledger: WriteLedger, tmp_path: Path) -> None:
    """In the last 50 minutes there are withheld windows enough."""
    first = 30
    assert not WITHHELD[first]
    assert not WITHHELD[WINDOWS - 1]
    shared = write_ledger(fleet(lambda n: "red" if n < first else "blue"), run_id="fleet")
    document = section(shared, price, "blue", PRICED)
    cut = write_ledger(alone(range(first, WINDOWS)), root=tmp_path / "alone")
    assert told(document) == told(section(cut, price, "run", PRICED))
    provision, reason = document.figure("terms", "provision", "in all"), rests_on(document, "provision")
    assert provision.value
    assert provision.low is not None
    assert not reason.startswith("confounded")
    assert document.figure("meters", "h100-sxm", "metered").value == sum(
        reading.power_mw * (reading.t1_ns - reading.t0_ns)
        for reading in windows(range(first, WINDOWS), lambda _: None)
        if isinstance(reading, events.Power) and reading.power_mw is not None
    )


def test_what_a_run_cost_that_ended_does_not_change(write_ledger: WriteLedger) -> None:
    """Its engine stays assigned to it until another run wants it, and that stops it."""
    assert not WITHHELD[44]
    assert WITHHELD[45]
    ended = events.Run(action="ended", name="grpo", run_id="blue", at_us=us(4500))
    root = write_ledger([*fleet(lambda _: "blue", range(45)), ended], run_id="fleet")
    before = told(section(root, price, "blue", PRICED))
    later: list[events.Event] = list(windows(range(45, WINDOWS), lambda n: "blue" if n == 45 else "red"))
    later.append(
        events.Engine(at_us=us(5000), device_id="s0", engine_id="r-s0", action="died", role="rollout", model="m")
    )
    write_ledger(later, root=root, writer="later", run_id="fleet")
    assert told(section(root, price, "blue", PRICED)) == before


def test_two_runs_that_borrow_a_device_by_turns_are_confounded(write_ledger: WriteLedger) -> None:
    document = section(write_ledger(fleet(by_turns), run_id="fleet"), price, "blue", PRICED)
    harm = document.figure("terms", "provision", "in all")
    assert harm.low is None
    assert str(harm.no_interval).startswith("confounded: other runs borrowed 1 of the run's devices")
    own = {n for n in range(WINDOWS) if not WITHHELD[n] and by_turns(n) == "blue"}
    met = sum(one["second"] // WINDOW_S in own for one in ASKED)
    assert f"; {met:,} lent requests compared, 0 had nothing to compare with" in rests_on(document, "provision")
    assert document.figure("terms", "prefix cache", "in all").basis == "absent"
    assert document.figure("terms", "interference", "in all").basis == "assumed"
    # Memory is held for one run only, and not while it is lent, whoever borrows it: 2 GiB at a cent for a GiB and hour.
    held_s = WINDOW_S * sum(WITHHELD[n] and by_turns(n) == "blue" for n in range(min(own), max(own)))
    assert document.figure("terms", "held memory", "in all").value == round(Fraction(2 * held_s * 10**7, 3600))
    numbers = {n for n in range(min(own), max(own) + 1) if WITHHELD[n]} | own
    assert document.figure("meters", "h100-sxm", "metered").value == sum(
        reading.power_mw * (reading.t1_ns - reading.t0_ns)
        for reading in windows(sorted(numbers), by_turns)
        if isinstance(reading, events.Power) and reading.power_mw is not None
    )


def handed_over(event: events.Event) -> Iterator[events.Event]:
    """The same with every lease red's for 40 s, then blue's for 20 s and red's again."""
    if not isinstance(event, events.DeviceSlice) or event.lease_id is None or event.t0_ns % WINDOW_NS == 0:
        yield event
        return
    third_ns = (event.t1_ns - event.t0_ns) // 3
    for run_id, first, thirds in (("blue", 0, 1), ("red", 1, 2)):
        times: dict[str, Any] = {
            f"{name}_ns": getattr(event, f"{name}_ns") * thirds // 3 for name in (*events.BUCKETS, "overlap")
        }
        t0_ns = event.t0_ns + first * third_ns
        yield replace(event, rollout_run_id=run_id, t0_ns=t0_ns, t1_ns=t0_ns + thirds * third_ns, **times)


def test_the_parts_of_a_lease_that_runs_had_are_the_lease(write_ledger: WriteLedger) -> None:
    root = write_ledger([part for event in fleet(lambda _: "red") for part in handed_over(event)], run_id="fleet")
    red, blue = (section(root, price, run_id, PRICED) for run_id in ("red", "blue"))
    lent = [n for n in range(WINDOWS) if not WITHHELD[n]]
    # A tenth of a cent for a second.
    assert red.figure("terms", "scheduler", "in all").value == len(lent) * 80 * 10**6
    assert blue.figure("terms", "scheduler", "in all").value == len(lent) * 20 * 10**6
    # Memory is held while nothing is lent, and then for red.
    assert red.figure("terms", "held memory", "in all").value == round(
        Fraction(2 * sum(WITHHELD) * WINDOW_S * 10**7, 3600)
    )
    assert blue.figure("terms", "held memory", "in all").value == 0
    met = sum(one["second"] // WINDOW_S in lent and 40 <= one["second"] % WINDOW_S < 60 for one in ASKED)
    assert f"; {met:,} lent requests compared, 0 had nothing to compare with" in rests_on(blue, "provision")
