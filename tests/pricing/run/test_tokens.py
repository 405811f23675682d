from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from pathlib import Path

from rose.ledger import catalog
from rose.pricing.run.tokens import Tokens, count
from tests.pricing import any_event


def counted(root: Path) -> dict[str, Tokens]:
    with closing(catalog.connect(root)) as connection:
        return count(connection, "run")


def test_tokens_of_the_sample_by_place_and_fate(sample_kept: Path) -> None:
    counts = counted(sample_kept)
    assert counts["borrowed"].by_fate == {"accepted": 1000, "rejected": 400, "stale": 1000, "lost": 1100, "open": 0}
    assert counts["dedicated"].by_fate == {"accepted": 2000, "rejected": 2600, "stale": 0, "lost": 0, "open": 1000}
    assert counts["unallocated"].generated == 0
    assert (counts["borrowed"].useful, counts["borrowed"].wasted_share) == (1400, Fraction(3, 5))


def test_a_later_verdict_stands_and_a_retried_event_counts_once(sample: Path, write_ledger: object) -> None:
    assert callable(write_ledger)
    again = any_event.verdict(trajectory_id="t0", group_id="g0", reward=0.0, at_us=2_000_000_000_000_000)
    turn = any_event.turn(
        event_id="retried",
        trajectory_id="t0",
        group_id="g0",
        step=1,
        turn=1,
        device_id="s0",
        placement="prefix",
        cached_tokens=1,
        output_tokens=7,
        answer_tokens=1,
    )
    write_ledger([again, turn, turn], root=sample, writer="second")
    assert counted(sample)["borrowed"].by_fate["rejected"] == 1400 + 7


def test_tokens_of_an_unknown_device_are_kept_apart(sample: Path, write_ledger: object) -> None:
    assert callable(write_ledger)
    turn = any_event.turn(
        trajectory_id="t9",
        group_id="g3",
        step=1,
        device_id="elsewhere",
        placement="queue",
        output_tokens=11,
        answer_tokens=1,
    )
    write_ledger([turn], root=sample, writer="second")
    assert counted(sample)["unallocated"].by_fate["open"] == 11


def test_no_share_is_wasted_of_nothing() -> None:
    assert Tokens(dict.fromkeys(("accepted", "rejected", "stale", "lost", "open"), 0)).wasted_share is None
