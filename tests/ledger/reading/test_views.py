from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from rose.events import Device, DeviceSlice, Run, Step
from rose.ledger.files import catalog
from rose.ledger.files.rolled import ROLLUPS
from tests.ledger.conftest import ask, record

Select = Callable[..., list[Any]]


@pytest.fixture
def select(tmp_path):
    def run(query, *writers):
        for number, recorded in enumerate(writers):
            record(tmp_path / "ledger", *recorded, writer=f"w{number}", durable=False)
        return ask(tmp_path / "ledger", query)

    return run


def _second(n):
    return datetime(1970, 1, 1, 0, 0, n)


def test_a_lease_is_one_row_from_grant_to_close(select, lease):
    events = [
        lease("granted", at_us=1_000_000, device_id="d", engine_id="e", step=3, expires_at_us=4_000_000),
        lease("renewed", at_us=2_000_000, expires_at_us=5_000_000),
        lease("resized", at_us=3_000_000, kv_budget_bytes=30),
        lease("frozen", at_us=3_000_000, kv_budget_bytes=50),
        lease("renewed", at_us=3_500_000, kv_budget_bytes=50, expires_at_us=7_000_000),
        lease("preempted", at_us=4_000_000, kv_budget_bytes=0, reason="burst"),
        lease("expired", at_us=7_000_000, kv_budget_bytes=0, reason="late"),
    ]
    columns = (
        "granted_at, closed_at, closed_by, close_reason, duration_ns, expires_at, kv_budget_granted_bytes, "
        "kv_budget_last_bytes, kv_budget_min_bytes, compute_share, step, renewals, frozen, device_id, engine_id"
    )
    rows = select(f"SELECT {columns} FROM lease", events)
    closed = (_second(1), _second(4), "preempted", "burst", 3_000_000_000, _second(7))
    assert rows == [(*closed, 100, 50, 30, 1.0, 3, 2, True, "d", "e")]


def test_leases_split_into_released_preempted_expired_and_open(select, lease):
    closes = ["released", "released", "preempted", "expired", None]
    events = [lease(lease_id=f"l{n}", at_us=n) for n in range(len(closes))]
    events += [lease(close, lease_id=f"l{n}", at_us=9) for n, close in enumerate(closes) if close]
    rows = select("SELECT coalesce(closed_by, 'open'), count(*) FROM lease GROUP BY 1 ORDER BY 1", events)
    assert rows == [("expired", 1), ("open", 1), ("preempted", 1), ("released", 2)]


@pytest.mark.parametrize(("newest_s", "closed"), [(64, None), (66, 5)])
def test_a_lease_that_nothing_closed_ends_at_its_expiry(select, lease, newest_s, closed):
    granted = lease(at_us=1_000_000, expires_at_us=3_000_000)
    renewed = lease("renewed", at_us=3_000_000, expires_at_us=5_000_000)
    other = lease(lease_id="other", at_us=newest_s * 1_000_000, expires_at_us=90_000_000)
    rows = select("SELECT closed_at, closed_by, duration_ns FROM lease WHERE lease_id = 'l'", [granted, renewed, other])
    expected = (_second(closed), "expired", 4_000_000_000) if closed else (None, None, None)
    assert rows == [expected]


def test_a_retried_event_counts_once_whichever_writer_it_came_through(select, lease):
    first, again = lease(at_us=1, event_id="x", step=1), lease(at_us=2, event_id="x", step=2)
    other = lease(at_us=3, event_id="y", step=3)
    unnamed = [lease(at_us=4, step=4), lease(at_us=4, step=5)]
    rows = select("SELECT step FROM lease_event ORDER BY step", [first, first, other, *unnamed], [again, first])
    assert rows == [(1,), (3,), (4,), (5,)]
    assert select("SELECT count(*) FROM event") == [(4,)]
    assert select("SELECT count(*) FROM stored_event") == [(7,)]


_KEPT, _LATE = (False, True, True, True), (False, False, True, False)
PROMISES = [
    ({}, (False, True, True, True)),
    ({"lease_id": "l"}, (True, True, True, True)),
    ({"ttft_ns": 101}, (False, False, True, False)),
    ({"tpot_mean_ns": 11}, (False, True, False, False)),
    ({"tpot_mean_ns": None, "tpot_max_ns": None, "output_tokens": 1}, (False, True, True, True)),
    ({"outcome": "failed", "ttft_ns": 1}, (False, False, False, False)),
    ({"outcome": "failed", "ttft_ns": None, "tpot_mean_ns": None}, (False, False, False, False)),
    ({"outcome": "aborted"}, (False, True, True, True)),
    ({"outcome": "aborted", "tpot_mean_ns": 11}, (False, True, False, False)),
    ({"outcome": "aborted", "ttft_ns": None, "tpot_mean_ns": None, "output_tokens": 0, "e2e_ns": 100}, _KEPT),
    ({"outcome": "aborted", "ttft_ns": None, "tpot_mean_ns": None, "output_tokens": 0, "e2e_ns": 101}, _LATE),
]


def test_a_request_knows_whether_it_kept_its_promises(select, request_event):
    events = [request_event(request_id=f"q{n:02}", **fields) for n, (fields, _) in enumerate(PROMISES)]
    rows = select("SELECT lent, ttft_ok, tpot_ok, slo_ok FROM request ORDER BY request_id", events)
    assert rows == [expected for _, expected in PROMISES]


def test_a_row_of_a_sample_is_as_many_requests_as_it_stands_for(select, request_event):
    events = [request_event(source="engine", requests=3, ttft_ns=101), request_event(request_id="alone")]
    assert select(
        "SELECT source, slo_ok, count(*), sum(prompt_tokens) FROM request GROUP BY ALL ORDER BY ALL", events
    ) == [("client", True, 1, 10), ("engine", False, 3, 30)]


def test_a_request_comes_with_the_traffic_of_its_run(select, request_event):
    run = Run(action="started", name="demo", trace="bursty", trace_keep_share=0.25, trace_time_scale=2.0)
    ended = Run(action="ended", name="demo")
    columns = "trace, trace_keep_share, trace_length_scale, trace_time_scale"
    assert select(f"SELECT {columns} FROM request", [run, request_event(), ended]) == [("bursty", 0.25, None, 2.0)]


def test_a_run_is_running_until_it_ends_and_again_when_it_starts_again(select):
    started = Run(action="started", name="demo", at_us=1_000_000, config_json="{}")
    failed = Run(action="failed", name="demo", at_us=2_000_000, reason="no room")
    again = Run(action="started", name="demo", at_us=3_000_000)
    query = "SELECT status, started_at, ended_at, reason, config_json FROM run"
    assert select(query, [started]) == [("running", _second(1), None, None, "{}")]
    assert select(query, [], [failed]) == [("failed", _second(1), _second(2), "no room", "{}")]
    assert select(query, [again]) == [("running", _second(1), None, None, "{}")]


def test_a_device_is_provisioned_from_joining_to_leaving(select):
    def device(action, t_ns):
        return Device(action=action, t_ns=t_ns, at_us=t_ns, device_id="d", pool="serving", device_class="cpu-core")

    query = "SELECT device_id, pool, device_class, joined_ns, left_ns FROM device"
    assert select(query, [device("joined", 10)]) == [("d", "serving", "cpu-core", 10, None)]
    assert select(query, [device("left", 20)]) == [("d", "serving", "cpu-core", 10, 20)]
    assert select(query, [device("joined", 30)]) == [("d", "serving", "cpu-core", 10, None)]


def test_a_tenure_ends_when_the_device_leaves_or_becomes_another(select):
    def device(action, t_ns, pool="serving", **fields):
        fields = {"at_us": t_ns, "hardware_id": "GPU-1"} | fields
        return Device(action=action, t_ns=t_ns, device_id="d", pool=pool, device_class="h100", **fields)

    query = "SELECT pool, joined_ns, left_ns FROM tenure ORDER BY joined_ns"
    # It left before it ever joined, and left twice: the second time corrects the first.
    changes = [device("left", 5), device("joined", 10), device("left", 20), device("left", 25)]
    assert select(query, changes) == [("serving", 10, 25)]
    # In whatever order they are recorded: it joined again as it was, then in another pool, then left.
    changes = [device("left", 60, "train"), device("joined", 40), device("joined", 30), device("joined", 50, "train")]
    rows = [("serving", 10, 25), ("serving", 30, 50), ("train", 50, 60)]
    assert select(query, changes) == rows
    assert select(query, [device("joined", 60, "train", at_us=61)]) == [*rows, ("train", 60, None)]
    assert select("SELECT DISTINCT hardware_id FROM device", [device("joined", 70, hardware_id=None)]) == [("GPU-1",)]


def test_a_device_slice_has_its_length_and_its_times(select):
    buckets = dict.fromkeys(("serving_ns", "rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns"), 0)
    times = {"t0_ns": 1_000_000_999, "t1_ns": 2_000_000_000}
    event = DeviceSlice(device_id="d", lease_id="l", idle_ns=999_999_001, **times, **buckets)
    rows = select("SELECT lease_id, ns, t0, t1, idle_ns FROM device_slice", [event])
    assert rows == [("l", 999_999_001, _second(1), _second(2), 999_999_001)]


def test_every_view_of_events_has_their_time(select):
    run = Run(action="started", name="n", at_us=1_000_000)
    rows = select("SELECT event_time, max(event_time) FROM run GROUP BY event_time", [run])
    assert rows == [(_second(1), _second(1))]
    listed = "SELECT table_name FROM duckdb_columns() WHERE database_name = 'ledger' AND column_name = 'event_time'"
    assert {view for (view,) in select(listed)} >= set(catalog.VIEWS) - set(ROLLUPS)


def test_alpha_is_the_accept_rate_of_a_step(select):
    usual = dict.fromkeys(("rollout_ns", "train_ns", "sync_ns", "groups", "tokens_trained"), 1)
    usual |= {"trajectories_accepted": 2, "reward_mean": 0.0, "loss": 0.0, "total_ns": 3}
    usual |= dict.fromkeys(("entropy", "kl", "grad_norm"))
    steps = [Step(step=n, trajectories=count, **usual) for n, count in enumerate((8, 0))]
    assert select("SELECT accepted_share FROM step ORDER BY step", steps) == [(0.25,), (None,)]
