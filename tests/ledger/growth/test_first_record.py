"""The first record of an event_id counts: which writer sends another, its time and the upkeep change nothing."""

import dataclasses
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.events import Power
from rose.ledger.files import layout, rows, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.verify import faulty_events, sum_faults
from tests.ledger.conftest import ask, close_epochs, copied
from tests.long_form import usual

DAY_US = 86_400_000_000
CHANGED = "event_id must be that of one event, and z/0, which counts, has other content"


def _power(event_id, power_mw, at_us):
    return Power(event_id=event_id, device_id=event_id, t0_ns=0, t1_ns=1, power_mw=power_mw, source="rapl", at_us=at_us)


def _write(root, writer, events):
    tail = segments.recover(root, writer)
    tail = segments.begin_epoch(root, tail)
    batch = [(event.kind, rows.encode(event)) for event in events]
    segments.write_next(root, tail, rows.table(writer, tail.next_seq, "r", "live", batch))


def _counted(root):
    return ask(root, "SELECT event_id, power_mw FROM power ORDER BY ALL")


def _summed(root):
    return dict(ask(root, "SELECT writer, sum(events)::BIGINT FROM daily_event WHERE kind = 'power' GROUP BY ALL"))


def _named(root):
    return [(fault.writer, fault.seq, fault.fault) for fault in faulty_events(root)[1]]


@pytest.fixture
def root(tmp_path):
    return layout.create(tmp_path / "ledger")


def test_no_writer_replaces_a_record_by_an_earlier_time(root):
    _write(root, "m", [_power("x", 1, DAY_US)])
    for writer in ("z", "a", "m"):
        _write(root, writer, [_power("x", 9, 0)])
    assert _counted(root) == [("x", 1)]
    faults = [(fault.writer, fault.seq) for fault in faulty_events(root)[1]]
    assert faults == [("a", 0), ("m", 1), ("z", 0)], "the replacing records, not the original"


@pytest.fixture(scope="module")
def rolled_up_made(tmp_path_factory):
    """A ledger to which `a` came before `z`, and whose daily sums count record z/0 of the id `x`."""
    root = layout.create(tmp_path_factory.mktemp("made") / "ledger")
    _write(root, "a", [_power("y", 1, DAY_US)])
    _write(root, "z", [_power("x", 1, DAY_US)])
    close_epochs(root)
    rollup.roll_up(Ledger(root))
    return root


@pytest.fixture
def rolled_up(rolled_up_made, tmp_path):
    return copied(rolled_up_made, tmp_path / "rolled_up")


def test_a_writer_that_came_earlier_does_not_replace_a_record_that_the_daily_sums_count(rolled_up):
    _write(rolled_up, "a", [_power("x", 9, 0)])
    for again in (False, True):
        if again:
            close_epochs(rolled_up)
            rollup.roll_up(Ledger(rolled_up), grace_s=0)
            compaction.compact(Ledger(rolled_up), grace_s=0)
        assert _counted(rolled_up) == [("x", 1), ("y", 1)]
        assert _summed(rolled_up) == {"a": 1, "z": 1}
        assert _named(rolled_up) == [("a", 1, CHANGED)]
    assert sum_faults(rolled_up) == ([], None, ())
    assert Ledger(rolled_up).verify().problems == []


def test_a_later_record_does_not_show_once_the_first_one_left_the_ledger(rolled_up, tmp_path):
    compaction.compact(Ledger(rolled_up), grace_s=0)
    away = str(tmp_path / "away")
    assert archive.archive(Ledger(rolled_up), older_than_days=1, to=away, delete=True, grace_s=0).parts
    _write(rolled_up, "a", [_power("x", 9, 0)])
    assert _counted(rolled_up) == []
    gone = "event_id must be that of one event, and z/0, which counts, was archived: restore it to compare them"
    assert _named(rolled_up) == [("a", 1, gone)]
    close_epochs(rolled_up)
    rollup.roll_up(Ledger(rolled_up), grace_s=0)
    assert _summed(rolled_up) == {"a": 1, "z": 1}
    archive.restore(Ledger(rolled_up), away)
    assert _counted(rolled_up) == [("x", 1), ("y", 1)]
    assert _summed(rolled_up) == {"a": 1, "z": 1}
    assert _named(rolled_up) == [("a", 1, CHANGED)]
    assert sum_faults(rolled_up) == ([], None, ())


_RECORD = st.builds(_power, st.sampled_from("xyz"), st.integers(0, 3), st.sampled_from([0, DAY_US, 3 * DAY_US]))
_RECORDS = st.lists(_RECORD, min_size=1, max_size=4)
_ACTS = st.one_of(st.tuples(st.sampled_from("amz"), _RECORDS), st.sampled_from(["close epochs", "compact", "roll up"]))


@settings(max_examples=int(usual("2", long="100")), deadline=None, suppress_health_check=list(HealthCheck))
@given(acts=st.lists(_ACTS, min_size=2, max_size=usual(6, long=9)))
def test_times_names_and_upkeep_change_nothing_of_what_counts(tmp_path_factory, acts):
    home = tmp_path_factory.mktemp("first")
    ledgers = [layout.create(home / name) for name in ("ledger", "other_times", "other_names")]
    root, other_times, other_names = ledgers
    for act in acts:
        counted = _counted(root)
        if act == "close epochs":
            for ledger in ledgers:
                close_epochs(ledger)
        elif act == "roll up":
            for ledger in ledgers:
                rollup.roll_up(Ledger(ledger), grace_s=0)
        elif act == "compact":
            compaction.compact(Ledger(root), grace_s=0)
        else:
            writer, events = act
            _write(root, writer, events)
            at_other_times = [dataclasses.replace(event, at_us=4 * DAY_US - event.at_us) for event in events]
            _write(other_times, writer, at_other_times)
            # Names that sort the other way round.
            _write(other_names, {"a": "z", "m": "m", "z": "a"}[writer], events)
            counted = _counted(root)
        assert _counted(root) == _counted(other_times) == _counted(other_names) == counted
        assert len({event_id for event_id, _ in counted}) == len(counted)
        assert sum(_summed(root).values()) == len(counted)
    assert sum_faults(root) == ([], None, ())
    assert Ledger(root).verify().problems == []
    shutil.rmtree(home)
