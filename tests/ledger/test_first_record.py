"""The first record of an event_id counts, whoever sends another, and whatever time that one carries."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.events import Power
from rose.ledger import catalog, faults, layout, rows, segments
from rose.ledger.growth import compaction, rollup
from tests.long_form import usual

DAY_US = 86_400_000_000


def _power(event_id: str, power_mw: int, at_us: int) -> Power:
    return Power(event_id=event_id, device_id="d", t0_ns=0, t1_ns=1, power_mw=power_mw, source="rapl", at_us=at_us)


def _write(root: Path, writer: str, events: list[Power]) -> None:
    """An epoch of one segment."""
    tail = segments.recover(root, writer)
    tail = segments.first_epoch(root, writer) if tail is None else segments.begin_epoch(root, tail)
    batch = [(event.kind, rows.encode(event)) for event in events]
    segments.append(root, tail, rows.table(writer, tail.next_seq, "r", "live", batch))


def _counted(root: Path) -> list[Any]:
    with catalog.connect(root) as connection:
        return connection.execute("SELECT event_id, power_mw FROM power ORDER BY ALL").fetchall()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layout.create(tmp_path / "ledger")


@pytest.mark.parametrize("writer", ["z", "a"])
def test_another_writer_does_not_replace_a_record_by_an_earlier_time(root: Path, writer: str) -> None:
    _write(root, "m", [_power("x", 1, DAY_US)])
    _write(root, writer, [_power("x", 9, 0)])
    assert _counted(root) == [("x", 1)]
    (fault,) = faults.listed(root)[1]
    assert (fault.writer, fault.seq) == (writer, 0), "the replacing record, not the original"


def test_a_writer_does_not_replace_its_own_record(root: Path) -> None:
    _write(root, "m", [_power("x", 1, DAY_US), _power("x", 9, 0)])
    assert _counted(root) == [("x", 1)]
    assert [fault.seq for fault in faults.listed(root)[1]] == [1]


def test_a_client_that_sends_again_to_a_controller_of_another_name_counts_once(root: Path) -> None:
    _write(root, "controller", [_power("x", 1, DAY_US)])
    _write(root, "again", [_power("x", 1, DAY_US), _power("y", 2, DAY_US)])
    assert _counted(root) == [("x", 1), ("y", 2)]
    assert faults.listed(root) == (0, [])


_RECORDS = st.lists(
    st.builds(_power, st.sampled_from("xyz"), st.integers(0, 3), st.sampled_from([0, DAY_US, 3 * DAY_US])),
    min_size=1,
    max_size=4,
)
_EPOCHS = st.lists(st.tuples(st.sampled_from(["m", "a", "z"]), _RECORDS), min_size=1, max_size=5)


@settings(max_examples=int(usual("6", long="100")), deadline=None, suppress_health_check=list(HealthCheck))
@given(epochs=_EPOCHS, upkeep=st.lists(st.sampled_from(["compact", "roll up"]), max_size=2))
def test_times_names_and_upkeep_change_nothing_of_what_counts(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[tuple[str, list[Power]]], upkeep: list[str]
) -> None:
    home = tmp_path_factory.mktemp("first")
    first, renamed = layout.create(home / "first"), layout.create(home / "renamed")
    other = {"m": "c", "a": "b", "z": "a"}
    for writer, events in epochs:
        _write(first, writer, events)
        _write(renamed, other[writer], [dataclasses.replace(event, at_us=4 * DAY_US - event.at_us) for event in events])
    counted = _counted(first)
    assert len({event_id for event_id, _ in counted}) == len(counted)
    assert _counted(renamed) == counted
    for step in upkeep:
        compaction.compact(first, grace_s=0) if step == "compact" else rollup.roll_up(first, grace_s=0)
        assert _counted(first) == counted
        with catalog.connect(first) as connection:
            (summed,) = connection.execute(
                "SELECT coalesce(sum(events), 0) FROM daily_event WHERE kind = 'power'"
            ).fetchone() or (0,)
        assert summed == len(counted)
    shutil.rmtree(home)
