from __future__ import annotations

from pathlib import Path
from typing import Any

from rose.pricing.audit.audit_steps import Held, held
from rose.pricing.audit.explain import Question, explain, explain_closed
from rose.pricing.charges import Stay
from rose.pricing.closing import close
from rose.pricing.closing.period import Period
from rose.pricing.money import NS_PER_HOUR as H
from tests.pricing.charges.test_pricing import T0_NS, S, power, slice_, us
from tests.pricing.charges.test_tenures import BOOK, GPU, KILOWATT_MW, device, run


def stay(run_id: str, t0_ns: int, t1_ns: int) -> Stay:
    return Stay(run_id, "d", "G0", "serving", "h100", t0_ns, t1_ns)


def test_time_is_cut_equally_where_it_is_shared_and_the_first_by_name_has_what_is_left() -> None:
    a, b, c = ((name, "d", "serving", "h100") for name in "abc")
    parts = held([stay("b", 0, H + 5), stay("c", H - 10, H), stay("a", H - 10, 2 * H)], 0)
    assert parts == {
        a: Held(10, 4, (b, c)),
        b: Held(H, H - 7, (a, c)),
        c: Held(10, 3, (a, b)),
    }
    assert held([stay("b", 0, H + 5), stay("a", H - 10, 2 * H)], H)[b] == Held(5, 2, (a,))
    assert held([stay("b", 0, H)], H) == {}


def test_the_charge_of_a_shared_hour_says_with_whom_and_re_adds(write_ledger: Any) -> None:
    made = [slice_(0, serving=3600), slice_(3600, serving=1801, idle=1799)]
    root: Path = write_ledger([run(), device("joined", 0), *made, power(3600, 7200, KILOWATT_MW), device("left", 7200)])
    other = [run(at_us=us(9)), device("joined", 5000, "x"), slice_(6000, "x", rollout=900), device("left", 7200, "x")]
    write_ledger(other, root=root, writer="other", run_id="other")
    asked = Question(run_id="run", hour_ns=T0_NS + H)
    explained = explain(root, asked, BOOK)
    assert explained.faults == []
    (shared,) = [step for step in explained.steps if step.title == "shared"]
    assert "1 h 00 min 00 s of the hour, some of it together with x of run other" in shared.says
    assert shared.sums[0].charged == 2500 * S
    assert any("the run's part, 2,500,000,000,000 of 3,600,000,000,000 ns" in step.says for step in explained.steps)
    closed = close.close(root, Period(T0_NS, T0_NS + 2 * H), BOOK, with_open_runs=True)
    (booked,) = explain_closed(root, asked, closed.close_id)
    assert (booked.faults, booked.amount.value) == ([], explained.amount.value)


def test_devices_that_change_places_within_an_hour_share_nothing(write_ledger: Any) -> None:
    """Two runs swap two GPUs at the half hour: neither ever holds what the other does."""
    root = None
    for run_id, *gpus in (("run", GPU, "GPU-77aa"), ("other", "GPU-77aa", GPU)):
        made = [run(), device("joined", 0, hardware_id=gpus[0]), slice_(0, serving=1800)]
        made += [device("joined", 1800, hardware_id=gpus[1]), slice_(1800, idle=1800), device("left", 3600)]
        root = write_ledger(made, root=root, writer=run_id, run_id=run_id)
    assert root is not None
    explained = explain(root, Question(run_id="run", hour_ns=T0_NS), BOOK)
    assert (explained.faults, explained.amount.value) == ([], 2_350_000_000)
    assert not [step for step in explained.steps if step.title == "shared"]
    closed = close.close(root, Period(T0_NS, T0_NS + H), BOOK, with_open_runs=True)
    (booked,) = explain_closed(root, Question(run_id="run", hour_ns=T0_NS), closed.close_id)
    assert (booked.faults, booked.amount.value) == ([], 2_350_000_000)
