"""Ledgers that hold what no check of today would let in: they are read, and what is wrong with them is named."""

import math
import re
from pathlib import Path

import pytest

import sql
from rose import events
from rose.event_fields import AMOUNT_MAX, INSTANT_NS_MAX
from rose.events import KINDS
from rose.ledger.files import catalog, rows, segments
from rose.ledger.ledger import Ledger
from rose.ledger.verify import faulty_events
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask, record

_AT_US = 1_793_491_200_000_000
_SLICE = {f"{bucket}_ns": 1 for bucket in events.BUCKETS}


def _slice(t0_ns, **fields):
    return events.DeviceSlice(
        **{"at_us": _AT_US, "device_id": "d", "t0_ns": t0_ns, "t1_ns": t0_ns + 7, **_SLICE, **fields}
    )


def _whole(kind):
    texts = {"BIGINT": 5, "DOUBLE": 0.5, "BOOLEAN": True, "VARCHAR": "x"}
    values = {each.name: each.allowed[0] if each.allowed else texts[each.sql_type] for each in rows.fields_of(kind)}
    values |= {"at_us": _AT_US, "event_id": None, "run_id": None}
    if kind == "device_slice":
        return _slice(100, lease_id="x")
    if kind in ("holdout", "power", "scale_down"):
        values |= {"t0_ns": 100, "t1_ns": 107}
    return KINDS[kind](**values)


def _with(event, **changed):
    named = zip((each.name for each in rows.fields_of(event.kind)), rows.encode(event), strict=True)
    return event.kind, tuple(changed.get(name, value) for name, value in named)


def _damage_and_whether_it_can_be_summed():
    odd = {
        "BIGINT": [2**63 - 1, -(2**63), -(2**62), -(2**56)],
        "DOUBLE": [math.nan, math.inf, -math.inf],
        "VARCHAR": [""],
        "BOOLEAN": [],
    }
    damaged = []
    for kind in KINDS:
        for each in rows.fields_of(kind):
            wrong = [value for value in odd[each.sql_type] if value != "" or each.filled or each.allowed]
            if each.sql_type == "BIGINT" and each.range is not None:
                wrong = [value for value in wrong if not each.range.least <= value <= each.range.most]
            wrong += [] if each.optional or each.name == "at_us" else [None]
            damaged += [
                (_with(_whole(kind), **{each.name: value}), _can_be_summed(kind, each, value)) for value in wrong
            ]
    return damaged


def _can_be_summed(kind, field, value):
    if field.sql_type in ("BIGINT", "DOUBLE"):
        return False
    return bool(value) or field.name not in KINDS[kind].needs


def _write(root, items, writer="w"):
    LedgerWriter.open(root, writer, "r").close()
    for first in range(0, len(items), 100):
        tail = segments.recover(root, writer)
        segments.write_next(root, tail, rows.table(writer, tail.next_seq, "r", "live", items[first : first + 100]))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    root = record(tmp_path_factory.mktemp("damaged") / "ledger", *map(_whole, KINDS), writer="sound")
    damage, can_be_summed = zip(*_damage_and_whether_it_can_be_summed(), strict=True)
    _write(root, damage)
    return root, can_be_summed.count(False)


def test_every_row_that_the_views_leave_out_is_named(damaged):
    root, items = damaged
    assert Ledger(root).verify().doubts == []
    with catalog.connect(root) as connection:
        where = "writer = 'w' AND NOT (fault LIKE 't0_ns must be at or after the end of the time%')"
        found = connection.execute(f"SELECT count(*), count(DISTINCT seq) FROM faulty_event WHERE {where}").fetchall()
        assert found == [(items, items)]
        assert connection.execute("SELECT count(*) FROM faulty_event WHERE writer = 'sound'").fetchall() == [(0,)]
    count, named = faulty_events(root, 3)
    assert count >= items
    assert len(named) == 3
    assert str(named[0]).startswith("w/0: event 'run': at_us must be an integer from 0 to ")
    assert str(named[0]).endswith("1970 to 2116, got 9223372036854775807")


def test_a_value_that_can_be_summed_stays_in_its_view(tmp_path):
    root = tmp_path / "ledger"
    _write(root, [_with(_whole("power"), busy_share=5.0), _with(_whole("power"), source="nvml", device_id="other")])
    assert faulty_events(root) == (0, [])
    assert ask(root, "SELECT busy_share, source FROM power ORDER BY seq") == [(5.0, "nvml-energy"), (0.5, "nvml")]


def test_sums_of_a_day_that_64_bits_do_not_hold_are_the_largest_there_is(tmp_path):
    record(tmp_path / "ledger", *[_turn(prompt_tokens=2**55 - 1)] * 300)
    assert ask(tmp_path / "ledger", "SELECT prompt_tokens FROM daily_turn") == [(2**63 - 1,)]


def _turn(**fields):
    values = {each.name: getattr(_whole("turn"), each.name) for each in rows.fields_of("turn")}
    return events.Turn(**{**values, **fields})


def test_an_event_id_with_other_content_is_named_and_a_retry_is_not(tmp_path, lease):
    sent = ((1, 10), (1, 20), (2, 30))
    leases = (lease(event_id="same", kv_budget_bytes=budget, at_us=at_us) for budget, at_us in sent)
    root = record(tmp_path / "ledger", *leases)
    count, (fault,) = faulty_events(root)
    assert (count, fault.seq) == (1, 2)
    assert str(fault) == (
        "w/2: event 'lease': event_id must be that of one event, and w/0, which counts, has other content, got same"
    )
    assert ask(root, "SELECT kv_budget_bytes FROM lease_event") == [(1,)]


def test_slices_of_a_device_that_overlap_are_named(tmp_path):
    begun = ((7, "a"), (0, "a"), (13, "a"), (13, "b"))
    root = record(tmp_path / "ledger", *(_slice(t0_ns, device_id=device_id) for t0_ns, device_id in begun))
    _, (fault,) = faulty_events(root)
    assert (fault.writer, fault.seq, fault.value) == ("w", 2, "13")
    assert fault.fault == "t0_ns must be at or after the end of the time that is accounted for already, 14"
    assert ask(root, "SELECT seq FROM device_slice ORDER BY seq") == [(0,), (1,), (3,)]


def test_a_slice_of_another_writer_is_named_where_its_time_is_accounted_for(tmp_path):
    root = record(tmp_path / "ledger", *map(_slice, (7, 14, 21)), writer="z")
    for writer, t0_ns in (("a", 6), ("b", 27), ("c", 34), ("d", 40)):
        record(root, _slice(t0_ns), writer=writer)
    assert [(fault.writer, fault.value) for fault in faulty_events(root)[1]] == [("a", "6"), ("b", "27"), ("d", "40")]


def test_every_view_and_daily_sum_leaves_out_what_it_cannot_reckon_with():
    # What is said of such rows, and a look at their ids alone.
    other, seen = ("faulty_event", "unrolled_retry"), set()
    for folder in ("views", "rollups"):
        for path in sorted((Path(sql.__file__).parent / folder).rglob("*.sql")):
            text = path.read_text()
            if (match := re.search(r"kind = '(\w+)'", text)) and path.stem not in other:
                assert f"kind = '{match[1]}' AND reckonable('{match[1]}')" in text, path
                seen.add(match[1])
    assert seen == set(KINDS)
    for name in ("sums/30_added.sql", "closing/hour_invoiced.sql", "closing/hour_tokens.sql"):
        text = (Path(sql.__file__).parent / name).read_text()
        kinds = [kind for kind in KINDS if re.search(rf"(WHEN|kind =) '{kind}'", text)]
        assert kinds
        assert all(f"reckonable('{kind}')" in text for kind in kinds), name


def test_what_a_row_must_be_to_be_reckoned_with():
    assert sql.reckonable("power") == (
        "CASE WHEN (coalesce(policy_version, 0) | coalesce(power_mw, 0) | coalesce(energy_mj, 0) | "
        "coalesce(package_energy_mj, 0) | coalesce(memory_used_bytes, 0) | coalesce(sm_clock_mhz, 0) | "
        f"coalesce(mig_instances, 0)) BETWEEN 0 AND {AMOUNT_MAX} AND (t0_ns | t1_ns) BETWEEN 0 AND {INSTANT_NS_MAX} "
        f"THEN t0_ns <= t1_ns AND t1_ns - t0_ns <= {AMOUNT_MAX} ELSE false END AND coalesce(isfinite(busy_share), true)"
    )


def test_the_view_of_faults_has_what_the_views_leave_out(tmp_path):
    _write(tmp_path / "ledger", [_with(_whole("lease"), lease_id="")])
    count, (fault,) = faulty_events(tmp_path / "ledger")
    assert (count, fault.kind, fault.seq) == (1, "lease", 0)
