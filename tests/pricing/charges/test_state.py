import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.events import BUCKETS
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges import state
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books.pricebook import load
from tests.long_form import usual

BOOK = load("example")
H = NS_PER_HOUR


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "KEPT_EVENTS", 0)


@given(st.integers(0, 10 * H), st.lists(st.integers(0, 3 * H), min_size=7, max_size=7).filter(any))
def test_a_slice_is_cut_at_hours_without_losing_a_nanosecond(t0_ns: int, buckets: list[int]) -> None:
    t1_ns = t0_ns + sum(buckets)
    row = {"t0_ns": t0_ns, "t1_ns": t1_ns, **{f"{b}_ns": ns for b, ns in zip(BUCKETS, buckets, strict=True)}}
    parts = list(state.cut(row))
    assert [hour for hour, _ in parts] == list(range(t0_ns // H, (t1_ns - 1) // H + 1))
    for hour, part in parts:
        assert sum(part.values()) == min(t1_ns, (hour + 1) * H) - max(t0_ns, hour * H)
        assert min(part.values()) >= 0
    assert [sum(part[bucket] for _, part in parts) for bucket in BUCKETS] == buckets


@pytest.mark.long
def test_a_small_ledger_leaves_no_file_and_a_large_one_does(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = charges.price(Ledger(sample), BOOK)
    assert not (sample / state.STATE).exists()
    monkeypatch.setattr(state, "KEPT_EVENTS", 10)
    assert charges.price(Ledger(sample), BOOK).frame.equals(in_memory.frame)
    assert (sample / state.STATE).exists()
    # Kept sums are used, and forgotten ones made again.
    assert charges.price(Ledger(sample), BOOK).frame.equals(in_memory.frame)
    (sample / state.STATE).unlink()
    assert charges.price(Ledger(sample), BOOK).frame.equals(in_memory.frame)


def test_memory_answers_for_the_same_events_and_prices_only(
    write_ledger: Any, sample_made: list[Any], tmp_path: Path
) -> None:
    def fresh(root: Path) -> charges.Charges:
        state._memory.clear()
        return charges.price(Ledger(root), BOOK)

    root = write_ledger(sample_made[:-20], root=tmp_path / "ledger")
    before = charges.price(Ledger(root), BOOK)
    copy = shutil.copytree(root, tmp_path / "copy")
    (copy / "logs").mkdir()
    (copy / "logs" / "fleet.log").write_text("no event")
    kept = list(state._memory)
    assert charges.price(Ledger(copy), BOOK).frame.equals(before.frame)
    assert list(state._memory) == kept
    write_ledger(sample_made[-20:], root=root)
    after = charges.price(Ledger(root), BOOK)
    assert not after.frame.equals(before.frame)
    assert after.frame.equals(fresh(root).frame)
    assert charges.price(Ledger(copy), BOOK).frame.equals(before.frame)
    free = [price.model_copy(update={"usd_per_hour": price.usd_per_hour * 0}) for price in BOOK.device]
    cheap = BOOK.model_copy(update={"device": free, "sha256": "cheap"})
    assert (
        charges.price(Ledger(copy), cheap).total_nano
        < before.total_nano
        == charges.price(Ledger(copy), BOOK).total_nano
    )
    assert charges.price(Ledger(copy), BOOK).frame.equals(fresh(copy).frame)


@pytest.mark.long
def test_a_damaged_or_older_file_is_made_again(sample: Path, kept: None) -> None:
    whole = charges.price(Ledger(sample), BOOK).frame
    (sample / state.STATE).write_bytes(b"no database")
    assert charges.price(Ledger(sample), BOOK).frame.equals(whole)
    state._version.cache_clear()
    try:
        state._KINDS = (*state._KINDS, "step")
        assert charges.price(Ledger(sample), BOOK).frame.equals(whole)
    finally:
        state._KINDS = state._KINDS[:-1]
        state._version.cache_clear()


def test_what_was_killed_while_it_was_made_is_made_again(
    sample: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(state, "_fold_crossing", killed)
        with pytest.raises(KeyboardInterrupt):
            charges.price(Ledger(sample), BOOK)
    assert (sample / state.STATE).exists()
    half = charges.price(Ledger(sample), BOOK).frame
    (sample / state.STATE).unlink()
    assert half.equals(charges.price(Ledger(sample), BOOK).frame)


def test_every_portion_counts_once_and_gives_what_the_whole_gives(
    write_ledger: Any, sample_made: list[Any], tmp_path: Path, kept: None
) -> None:
    whole = write_ledger(sample_made, root=tmp_path / "whole")
    root = tmp_path / "portions"
    size = usual(29, long=13)
    for n in range(0, len(sample_made), size):
        write_ledger(sample_made[n : n + size], root=root)
        if n % 2:
            compact(Ledger(root), grace_s=0)
        so_far = charges.price(Ledger(root), BOOK)
        again = shutil.copytree(root, tmp_path / f"copy-{n}")
        (again / state.STATE).unlink()
        assert charges.price(Ledger(again), BOOK).frame.equals(so_far.frame)
    stepwise, expected = charges.price(Ledger(root), BOOK).frame, charges.price(Ledger(whole), BOOK).frame
    # Written by the same writer in the same order, the events have the same places.
    assert stepwise.equals(expected)


def test_a_retried_event_counts_once_also_in_another_portion(
    write_ledger: Any, sample_made: list[Any], kept: None
) -> None:
    named = [replace(event, event_id=f"e{n}") for n, event in enumerate(sample_made)]
    root = write_ledger(named)
    before = charges.price(Ledger(root), BOOK).frame
    # Of one time, so the first writer by name counts.
    write_ledger([*named[5:], *named], root=root, writer="zagain")
    assert charges.price(Ledger(root), BOOK).frame.equals(before)


def test_another_book_prices_anew_and_leaves_the_sums(sample: Path, kept: None) -> None:
    here = charges.price(Ledger(sample), BOOK)
    doubled = [price.model_copy(update={"usd_per_hour": 2 * price.usd_per_hour}) for price in BOOK.device]
    dear = BOOK.model_copy(update={"device": doubled, "sha256": "dear"})
    twice = charges.price(Ledger(sample), dear)
    capacity = here.frame["kind"] == "capacity"
    assert twice.frame.filter(capacity)["cost_nano"].sum() == 2 * here.frame.filter(capacity)["cost_nano"].sum()
    assert charges.price(Ledger(sample), BOOK).frame.equals(here.frame)
