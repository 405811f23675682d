"""Identities of a ledger that grows: what is closed and corrected, and what comes in portions, twice or late."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from rose import events
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.verify import faulty_events
from rose.pricing import charges
from rose.pricing.charges.pricing import AMOUNTS
from rose.pricing.closing import charge_algebra, close
from rose.pricing.closing.bill import of_close
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from tests.ledger.conftest import close_epochs
from tests.pricing import any_event
from tests.pricing.any_ledger import (
    BOOK,
    EXAMPLES,
    KEPT,
    QUIET,
    SEED,
    content,
    folder_of_ledgers,
    provisioned,
    slice_of,
)
from tests.pricing.identities.random_ledger import MIDNIGHT_NS, ledgers
from tests.pricing.recorded import HOUR_NS, PORTIONS, Made, Recorded

pytestmark = pytest.mark.usefixtures("ledgers_folder")


@seed(SEED)
@settings(QUIET, max_examples=EXAMPLES // 2)
@given(made=ledgers())
def test_identity_9_closed_and_corrections_are_restated(made: Made) -> None:
    day_ns = 24 * HOUR_NS
    period = Period(MIDNIGHT_NS - 3 * day_ns, MIDNIGHT_NS + 4 * day_ns)
    root = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "ledger"
    made.write(root, last=0)
    began_us = period.to_ns // 1000
    if not provisioned(Made(tuple(record for record in made.recorded if record.portion == 0))):
        return
    close_id = close.close(Ledger(root), period, BOOK, with_open_runs=True, now_us=began_us).close_id
    first = of_close(Ledger(root), close_id)
    frames = [first.frame]
    assert content(first.frame.drop("closed")) == content(first.parts[0].frame)
    for portion in range(1, PORTIONS):
        made.write(root, portion, portion)
        close.restate(Ledger(root), close_id, "late events", now_us=began_us + portion)
        now = of_close(Ledger(root), close_id)
        truth = charges.price(Ledger(root), BOOK, period).frame
        assert charge_algebra.difference(truth, now.frame.drop("closed")).is_empty()
        for amount in AMOUNTS:
            assert sum(part.frame[amount].sum() for part in now.parts) == truth[amount].sum()
        frames.append(now.frame)
    for portion, frame in enumerate(frames):
        then = of_close(Ledger(root), close_id, (began_us + portion) * 1000)
        assert content(then.frame) == content(frame)
        assert content(then.parts[0].frame) == content(first.parts[0].frame)


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
    close_epochs(kept)
    compaction.compact(Ledger(kept), grace_s=0)
    assert outcome(kept) == last
    (kept / KEPT).unlink()
    assert outcome(kept) == last


def _sent_twice() -> Made:
    """Writer `v` came to the ledger before `w`, and sends a turn again that `w` recorded, with other tokens."""
    joined = events.Device(
        action="joined", device_id="d", t_ns=MIDNIGHT_NS - HOUR_NS, pool="rollout", device_class="owned", at_us=1
    )
    ids: dict[str, Any] = {"trajectory_id": "t", "group_id": "g", "step": 0, "turn": 0, "attempt": 0, "device_id": "d"}
    turn = any_event.turn(**ids, event_id="sent twice", output_tokens=9, answer_tokens=1, at_us=MIDNIGHT_NS // 1000)
    slice_event = slice_of("d", MIDNIGHT_NS - HOUR_NS, rollout=2 * HOUR_NS)
    return Made(
        (
            *(Recorded(0, "v", "a", event) for event in (events.Run(action="started", name="a", at_us=1), joined)),
            *(Recorded(0, "w", "a", event) for event in (slice_event, turn)),
            Recorded(1, "v", "a", replace(turn, output_tokens=5, at_us=turn.at_us - 1)),
        )
    )


def _tokens(root: Path) -> int:
    return int(charges.price(Ledger(root, allow_unverified=True), BOOK).frame["tokens"].sum())


def test_identity_11_a_retry_counts_once_whichever_portion_it_came_in() -> None:
    """Of two records of an id that no roll-up counts that of the writer which came first counts, also if it is late."""
    home = Path(tempfile.mkdtemp(dir=folder_of_ledgers()))
    _sent_twice().write(home / "kept", last=0)
    (home / "kept" / KEPT).touch()
    assert _tokens(home / "kept") == 9
    _sent_twice().write(home / "kept", 1, 1)
    _sent_twice().write(home / "fresh")
    assert _tokens(home / "kept") == 5
    assert content(charges.price(Ledger(home / "kept"), BOOK).frame) == content(
        charges.price(Ledger(home / "fresh"), BOOK).frame
    )


def test_identity_11_a_record_that_a_roll_up_counts_is_the_first() -> None:
    kept = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "kept"
    _sent_twice().write(kept, last=0)
    (kept / KEPT).touch()
    close_epochs(kept)
    rollup.roll_up(Ledger(kept))
    assert _tokens(kept) == 9
    _sent_twice().write(kept, 1, 1)
    assert _tokens(kept) == 9
    (kept / KEPT).unlink()
    assert _tokens(kept) == 9
    # Priced at the moment before the roll-up was in place.
    (kept / "rollup").rename(kept.parent / "rollup")
    (kept / KEPT).unlink(missing_ok=True)
    (kept / KEPT).touch()
    assert _tokens(kept) == 5
    (kept.parent / "rollup").rename(kept / "rollup")
    assert _tokens(kept) == 9


def outcome(root: Path) -> bytes | str:
    try:
        return content(charges.price(Ledger(root), BOOK).frame)
    except PricingError as error:
        return str(error).replace(str(root), "")


@seed(SEED)
@settings(QUIET, max_examples=EXAMPLES // 2)
@given(made=ledgers(portions=1), data=st.data())
def test_time_that_is_reported_again_changes_no_charge_and_is_named(made: Made, data: st.DataObject) -> None:
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
    before = content(charges.price(Ledger(root), BOOK).frame)
    late = slice_of(str(again.event.device_id), at_ns, idle=1)
    Made((Recorded(0, "late", again.run_id, late),)).write(root)
    for _ in range(2):
        assert content(charges.price(Ledger(root), BOOK).frame) == before
        (root / KEPT).unlink(missing_ok=True)
    assert ("late", 0) in [(fault.writer, fault.seq) for fault in faulty_events(root, 10_000)[1]]
