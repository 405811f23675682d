from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing.answers import frontier
from rose.pricing.answers.run_report import HARVEST, build
from rose.pricing.borrowing.alternatives import DEDICATED, LOADED, Comparison, compare
from rose.pricing.borrowing.provision import BREAK_EVEN_TIME, provision
from rose.pricing.marginal_cost.marginal import Marginal, marginal
from rose.pricing.price_books.pricebook import PriceBook, parse
from rose.pricing.run.priced import priced
from rose.pricing.run.tokens import RolloutOutput, rollout_outputs, together
from tests.pricing import any_event
from tests.pricing.charges import test_tenures
from tests.pricing.charges.test_pricing import slice_, turn
from tests.pricing.charges.test_tenures import device, run
from tests.pricing.closing.conftest import T0_NS, S, judged, us

LENT_NS = 1200 * S
#: A tenth of a cent for 1 s of serving devices: no nano-dollar is rounded.
PRICE = Fraction(36, 10)
BOOK = parse(test_tenures.BOOK.text.replace("2.35", "3.6"), "b.toml")


@dataclass(frozen=True, slots=True)
class Seen:
    made: dict[tuple[str, str], RolloutOutput]
    compared: Comparison
    borrow: Marginal
    slack: tuple[float, float] | str
    break_even: Any


def holding(*slices: events.Event, **pools: str) -> list[events.Event]:
    made: list[events.Event] = [run()]
    for device_id, pool in pools.items():
        made += [
            device(action, at_s, device_id, pool=pool, hardware_id=f"GPU-{device_id}")
            for action, at_s in (("joined", 0), ("left", 3600))
        ]
    return [*made, *slices]


def lease(action: Any, at_s: int) -> events.Lease:
    return any_event.lease(action=action, lease_id="L", device_id="s", expires_at_us=us(9000), at_us=us(at_s))


def ours(tokens: int = 1000) -> list[events.Event]:
    """1,000 tokens in 1,200 s of a serving device, leased for half an hour, and 3,000 in 1,800 s of a dedicated one."""
    return holding(
        lease("granted", 0),
        slice_(0, "s", "L", rollout=1200, idle=600),
        lease("released", 1800),
        slice_(1800, "s", serving=1800),
        turn("a", 10, tokens, device_id="s", lease_id="L"),
        slice_(0, "r", rollout=1800, train=600, idle=1200),
        turn("b", 10, 3 * tokens, device_id="r"),
        *judged("a", 20, accepted=True),
        s="serving",
        r="rollout",
    )


def seen(root: Path, book: PriceBook = BOOK, run_id: str = "run") -> Seen:
    with priced(Ledger(root), run_id, book) as run:
        compared, slack = compare(run, market=False), frontier.slack(run.allocation, run.tokens, run.groups)
        break_even = provision(run).figure("totals", BREAK_EVEN_TIME).value
        return Seen(rollout_outputs(run.charged), compared, run.borrow, slack, break_even)


def with_another(write_ledger: Any, *made: events.Event) -> Path:
    return write_ledger(made, writer="other", run_id="other")


def test_another_run_on_the_hardware_changes_what_is_paid_and_not_what_is_made(
    write_ledger: Any, tmp_path: Path
) -> None:
    other = holding(*(slice_(0, name, rollout=900) for name in "sr"), s="serving", r="rollout")
    root = write_ledger(ours(), root=with_another(write_ledger, *other))
    before, after = seen(write_ledger(ours(), root=tmp_path / "alone")), seen(root)
    for key, rollouts_s in ((("serving", "h100-sxm"), 1200), (("rollout", "h100-sxm"), 1800)):
        was, shared = before.made[key], after.made[key]
        assert was.measured_ns == was.hardware_ns == was.rollout_ns == rollouts_s * S
        assert shared.measured_ns == shared.hardware_ns == 2 * shared.rollout_ns == rollouts_s * S
        assert shared.generated == was.generated
        assert (shared.usd, shared.unshared_usd) == (was.usd / 2, was.usd)
    assert after.borrow.borrowed_ns == before.borrow.borrowed_ns == LENT_NS
    # A third of what the dedicated device made in 1,800 s, at its dollar an hour.
    for name, usd in ((DEDICATED, Fraction(600, 3600)), (LOADED, Fraction(600 * 3600, 2400 * 3600))):
        was_way, way = (next(way for way in run.compared.alternatives if way.name == name) for run in (before, after))
        assert was_way.usd == way.usd == usd
        assert was_way.bought == way.bought
    assert not isinstance(after.slack, str)
    assert after.slack == before.slack
    assert before.break_even is not None
    assert after.break_even == before.break_even


def test_idle_time_of_a_device_that_two_runs_have_is_there_once(write_ledger: Any) -> None:
    """Both report 1,200 s of one hour as idle, in which neither worked for more than 2,400 s: each has half of them."""
    way = seen(write_ledger(ours(), root=with_another(write_ledger, *ours()))).compared.alternatives[0]
    assert way.bought is not None
    assert way.bought.idle_ns == 600 * S


def test_what_the_borrow_kept_from_being_avoided_is_charged_for_the_run_s_part(write_ledger: Any) -> None:
    """The other run holds the device for the whole hour: every nanosecond of it is half this run's."""
    root = write_ledger(ours(), root=with_another(write_ledger, *holding(s="serving")))
    kept = any_event.scale_down(device_id="s", t0_ns=T0_NS + 900 * S, t1_ns=T0_NS + 3600 * S)
    write_ledger([kept], root=root, writer="kim")
    gone = parse(BOOK.text.replace("idle_anyway = true", "idle_anyway = false"), "b.toml")
    with priced(Ledger(root), "run", BOOK) as run:
        # The lease ended at 1,800 s.
        assert (run.borrow.avoidable_usd, run.borrow.kept) == (PRICE * 450 / 3600, True)
        assert marginal(run.connection, "run", run.allocation, gone).avoidable_usd == PRICE * 600 / 3600


def test_idle_time_put_to_work_is_what_was_measured(write_ledger: Any) -> None:
    """Shared in the first of two hours alone, which weighs no less for it: 1,200 s of 5,400 s."""
    made = [*ours(), device("joined", 3600, "s", hardware_id="GPU-s"), slice_(3600, "s", idle=3600)]
    made.append(device("left", 7200, "s", hardware_id="GPU-s"))
    root = write_ledger(made, root=with_another(write_ledger, *holding(s="serving")))
    assert build(Ledger(root), "run", BOOK).section.figure("glance", HARVEST).value == pytest.approx(1200 / 5400)


def test_the_capacity_that_two_runs_avoid_is_no_more_than_the_hardware_had(write_ledger: Any) -> None:
    """Without a dedicated device the borrowed time stands for one; time in which both worked stands for it once."""
    worked_s, root = (3600, 900), None
    for run_id, rollout_s in zip(("run", "other"), worked_s, strict=True):
        slices = slice_(0, "s", rollout=rollout_s, idle=3600 - rollout_s), turn("a", 10, rollout_s, device_id="s")
        root = write_ledger(holding(*slices, s="serving"), root=root, writer=run_id, run_id=run_id)
    assert root is not None
    both = [seen(root, run_id=run_id) for run_id in ("run", "other")]
    worked = sum(worked_s)
    for priced_run, rollout_s in zip(both, worked_s, strict=True):
        (part,) = priced_run.made.values()
        assert part.generated * S == part.measured_ns
        assert part.hardware_ns == rollout_s * S * min(Fraction(1), Fraction(3600, worked))
        way = priced_run.compared.alternatives[0]
        assert way.bought is not None
        assert way.bought.needed_ns == part.hardware_ns
        assert way.usd == part.hardware_ns / S / 3600
    parts = [part for priced_run in both for part in priced_run.made.values()]
    assert together(parts).hardware_ns == min(3600, worked) * S
