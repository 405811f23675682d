"""Events of RL runs that share a fleet: whose they are, and whose devices, leases and time."""

import json

import pyarrow as pa
import pytest

from rose.events import BUCKETS, DeviceSlice, Hold, Lease, Preemption, Run, Sync, Turn
from rose.ledger.files import catalog, rows
from rose.ledger.writer import Overflow
from tests.ledger.conftest import record

_BUCKETS = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 1)


def _turn(**fields):
    usual = dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens", "queue_ns"), 1)
    usual |= {"turn": 0, "attempt": 0, "duration_ns": 1, "outcome": "completed", "placement": "lease"}
    return Turn(**{**usual, **fields})


def _slice(t0_ns, **fields):
    return DeviceSlice(**{"device_id": "d", "t0_ns": t0_ns, "t1_ns": t0_ns + 7, **_BUCKETS, **fields})


def _of_device(**fields):
    of_lease = {"kv_budget_bytes": 1, "compute_share": 1.0, "expires_at_us": 1}
    of_sync = {"wire_bytes": 1, "dense_bytes": 1, "total_ns": 1, "source": "relay", "route": "loopback"}
    return [
        Lease(action="granted", lease_id=fields.get("rl_run_id", "own"), **of_lease, **fields),
        Preemption(action="cut", reason="burst", **fields),
        Hold(reason="regret", count=1, duration_ns=1, **fields),
        Sync(ok=True, base_version=None, encoding="dense", **of_sync, **fields),
    ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A connection to the ledger of a fleet `f` with RL runs `a` and `b`, and of a run `old` that is on its own."""
    root = tmp_path_factory.mktemp("shared") / "ledger"
    made = [Run(action="started", name="fleet")]
    for rl_run in ("a", "b"):
        made.append(Run(action="started", name="grpo", run_id=rl_run, fleet_run_id="f"))
        made += [_turn(run_id=rl_run, group_id="g", step=1, answer_tokens=1), *_of_device(rl_run_id=rl_run)]
    made += [_turn(run_id="a", trajectory_id="outside"), _slice(0, rollout_run_id="a", train_run_id="b"), _slice(7)]
    record(root, *made, writer="controller", run_id="f")
    alone = [Run(action="started", name="old"), _turn(), _slice(0), *_of_device()]
    record(root, *alone, writer="alone", run_id="old")
    with catalog.connect(root) as connection:
        yield connection


def test_a_writer_records_events_of_other_runs_beside_its_own(shared):
    runs = shared.execute("SELECT run_id, fleet_run_id, status FROM run ORDER BY 1").fetchall()
    assert runs == [("a", "f", "running"), ("b", "f", "running"), ("f", "f", "running"), ("old", "old", "running")]
    turns = shared.execute("SELECT run_id, fleet_run_id, count(*) FROM turn GROUP BY ALL ORDER BY 1").fetchall()
    assert turns == [("a", "f", 2), ("b", "f", 1), ("old", "old", 1)]


def test_what_a_trainer_does_not_say_of_a_turn_is_unknown(shared):
    query = "SELECT group_id, step, answer_tokens FROM turn WHERE trajectory_id = 'outside'"
    assert shared.execute(query).fetchall() == [(None, None, None)]
    assert shared.execute("SELECT count(*) FROM faulty_event").fetchall() == [(0,)]


@pytest.mark.parametrize("view", ["lease", "lease_event", "preemption", "hold", "sync"])
def test_a_device_side_event_names_the_rl_run(shared, view):
    named = shared.execute(f"SELECT run_id, rl_run_id FROM {view} ORDER BY ALL").fetchall()
    assert named == [("f", "a"), ("f", "b"), ("old", "old")]


def test_a_slice_says_whose_its_time_was(shared):
    query = "SELECT run_id, t0_ns, rollout_run_id, train_run_id FROM device_slice ORDER BY ALL"
    assert shared.execute(query).fetchall() == [("f", 0, "a", "b"), ("f", 7, "f", "f"), ("old", 0, "old", "old")]


def test_the_fleet_that_an_event_names_stays_and_the_writers_own_run_names_none():
    events = [_turn(run_id="a", fleet_run_id="other"), _turn(run_id="a"), _turn(run_id="f"), _turn()]
    table = rows.table("w", 0, "f", "live", [(event.kind, rows.encode(event)) for event in events])
    assert table.select(["run_id", "fleet_run_id"]).to_pylist() == [
        {"run_id": "a", "fleet_run_id": "other"},
        {"run_id": "a", "fleet_run_id": "f"},
        {"run_id": "f", "fleet_run_id": None},
        {"run_id": "f", "fleet_run_id": None},
    ]
    alone = rows.table("w", 0, "f", "live", [(_turn().kind, rows.encode(_turn()))])
    assert alone.schema.field("run_id").type == pa.string()
    assert "fleet_run_id" not in alone.column_names


def test_what_a_full_queue_drops_is_counted_by_run_and_slices_of_others_are_not_merged():
    into = Overflow()
    owned = [_slice(7 * n, rollout_run_id=rl_run) for n, rl_run in enumerate("aabb")]
    for event in [_turn(run_id="a"), _turn(run_id="a"), _turn(run_id="b"), _turn(), *owned]:
        into.add(event, rows.encode(event))
    drained = list(into.drain())
    named = [dict(zip((field.name for field in rows.fields_of(kind)), row, strict=True)) for kind, row in drained]
    spans = [(row["rollout_run_id"], row["t0_ns"], row["t1_ns"]) for row in named if "t0_ns" in row]
    assert spans == [("a", 0, 14), ("b", 14, 28)]
    counts = {row["run_id"]: json.loads(row["detail_json"])["count"] for row in named if "t0_ns" not in row}
    assert counts == {"a": 2, "b": 1, None: 1}
