"""What the named queries say of the small run in conftest.py, worked out by hand. Times there are in seconds."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction

import pytest

from rose.events import Device, DeviceSlice, Request, Run
from tests.sql.conftest import SECOND, at, ns, small_run, turn

DAY = date(2026, 11, 2)
START = datetime(2026, 11, 2, 10, tzinfo=UTC)


def time(seconds):
    return START.replace(tzinfo=None) + timedelta(seconds=seconds)


@pytest.fixture
def rows(small, by_hand):
    """Rows of a query on the small run, of the columns named, in order."""

    def select(name, *columns, **variables):
        picked = [tuple(row[column] for column in columns) for row in by_hand(small, name, **variables)]
        return picked if len(columns) > 1 else [row[0] for row in picked]

    return select


def seconds(*lengths):
    return tuple(round(length * SECOND) for length in lengths)


def test_device_time_sums_slices_of_a_day(rows):
    buckets = ("serving_ns", "rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns", "idle_ns", "ns")
    assert rows("device_time_by_bucket_and_day", "day", "device_id", "pool", *buckets) == [
        (DAY, "d0", "rollout", *seconds(0, 60, 30, 0, 0, 0, 10, 100)),
        (DAY, "s0", "serving", *seconds(38, 20, 0, 1, 4, 10, 27, 100)),
    ]
    since = f"make_timestamp({at(50)})"
    assert rows("device_time_by_bucket_and_day", "ns", since=since, device_id="'s0'") == [50 * SECOND]


def test_unused_time_is_what_no_lease_had_or_idle_under_a_lease(rows):
    columns = ("hour", "device_id", "idle_ns", "headroom_ns", "unused_ns", "unlent_ns", "ns")
    # Without a lease: [0, 20), [50, 60), [90, 100).
    assert rows("idle_that_could_have_been_lent", *columns) == [(time(0), "s0", *seconds(24, 3, 27, 40, 100))]
    # Under a lease: [20, 50), [60, 90).
    columns = ("device_id", "unused_ns", "held_ns", "leased_ns", "unused_share")
    assert rows("leased_but_unused", *columns) == [("s0", *seconds(3, 7, 60), 0.05)]


def test_an_rl_run_did_not_use_what_was_idle_while_it_had_the_lease(tmp_path, record, by_hand):
    made = [_device("joined", 0)]
    for t0, rl_run_id in ((0, "a"), (3, "b"), (10, "a")):
        made.append(replace(_idle(t0, t0 + 2), lease_id="L", rollout_run_id=rl_run_id))
    root = record(tmp_path / "ledger", made)
    unused = {
        run_id: [row["unused_ns"] for row in by_hand(root, "leased_but_unused", run_id=f"'{run_id}'")]
        for run_id in ("r", "a", "b")
    }
    assert unused == {"r": [6 * SECOND], "a": [4 * SECOND], "b": [2 * SECOND]}


def test_harvested_is_rollout_time_of_what_serving_left_in_the_run_its_steps_and_rollouts(rows):
    (found,) = rows("harvest_share_by_day", "devices", "rollout_ns", "harvested_share", "lent_share")
    assert found == (1, 20 * SECOND, pytest.approx(20 / 57), 0.6)
    assert rows("serving_load_by_hour", "serving_share", "rollout_share", "unused_share") == [(0.38, 0.2, 0.37)]
    # Steps were delayed by 6 s beside 3 s of work, and by 3 s beside 3 s: alone serving would have left 60 s.
    assert rows("harvest_share_by_day", "unused_by_serving_alone_ns", "harvest_of_unused") == [(60 * SECOND, 20 / 60)]
    shares = [20 / 60, 20 / 60, 15 / (15 + 20 + 28 / 3 + 2)]
    assert rows("harvest_share_of_run", "harvest_of_unused") == pytest.approx(shares)
    # Rollouts were played in [0, 40) and [50, 90): two thirds of the slice of [20, 50) count.
    assert rows("harvest_share_of_run", "period", "rollout_ns", "idle_ns", "ns", "harvested_share") == [
        ("run", *seconds(20, 27, 100), pytest.approx(20 / 57)),
        ("steps", *seconds(20, 27, 100), pytest.approx(20 / 57)),
        ("rollouts", *seconds(15, 20, 80), pytest.approx(15 / (15 + 20 + 28 / 3))),
    ]


def test_harvests_of_a_ledger_from_before_work_beside_serving_agree(tmp_path, record, by_hand):
    work = replace(_idle(0, 10), rollout_ns=6 * SECOND, idle_ns=4 * SECOND)
    root = record(tmp_path / "ledger", [Run(at_us=at(0), action="started", name="run"), _device("joined", 0), work])
    for name in ("harvest_share_by_day", "harvest_share_of_run"):
        (found,) = by_hand(root, name)
        assert (found["harvested_share"], found["harvest_of_unused"]) == (0.6, 0.6)


def test_serving_alone_takes_no_less_than_nothing(tmp_path, record, by_hand):
    """A delay that is told a slice late may exceed the slice's serving time."""
    beside = {"beside_ns": 3 * SECOND, "beside_work_ns": 2 * SECOND, "delayed_ns": 9 * SECOND}
    late = replace(_idle(0, 10), rollout_ns=2 * SECOND, serving_ns=SECOND, idle_ns=7 * SECOND, **beside)
    root = record(tmp_path / "ledger", [_device("joined", 0), late])
    assert [row["harvest_of_unused"] for row in by_hand(root, "harvest_share_by_day")] == [0.2]


def test_a_request_is_delayed_by_what_its_device_was_from_its_first_token_to_its_last(rows):
    """q2 ran from 29 to 30, in a slice of 30 s with 6 s of delay. q3 ran from 88.5 to 90.5, and met the last 1.5 s
    of the slice of 30 s with 3 s of delay. q1 came before any slice that recorded delay; q4 failed."""
    columns = ("request_id", "device_id", "delayed_ns", "tpot_delayed_ns", "longer_share", "allowed_share")
    assert rows("delay_by_request", *columns) == [
        ("q2", "s0", *[pytest.approx(SECOND / 5, abs=100)] * 2, pytest.approx(0.2 / 0.8), 0.25),
        ("q3", "s0", *[pytest.approx(3 * SECOND / 20, abs=100)] * 2, pytest.approx(0.15 / 1.85), 0.25),
    ]
    # 0.35 s of delay in 3 s.
    fleet = rows("delay_by_request", "run_longer_share", "run_longer_p99_share")
    assert fleet == [(pytest.approx(0.35 / 2.65), pytest.approx(0.2 / 0.8))] * 2
    assert rows("delay_by_request", "run_longer_share", until=f"make_timestamp({at(31)})") == [pytest.approx(0.25)]


def test_a_request_is_delayed_no_longer_than_its_tokens_took(tmp_path, record, by_hand):
    asked = next(one for one in small_run() if isinstance(one, Request) and one.request_id == "q2")
    late = replace(_idle(29, 30), delayed_ns=5 * SECOND)
    root = record(tmp_path / "ledger", [_device("joined", 0), late, asked])
    (found,) = by_hand(root, "delay_by_request")
    assert found["delayed_ns"] == pytest.approx(SECOND, abs=100)
    assert (found["longer_share"], found["allowed_share"]) == (None, None)


def test_tokens_are_wasted_by_one_cause_each(rows):
    # Borrowed: 20 + 10 of t1, 5 of t2, 7 thrown away. Dedicated: 30 of t4, 4 of t3, 20 of t5, 15 of t2.
    assert rows("wasted_tokens_by_cause", "made_on", "cause", "wasted_tokens", "generated_tokens", "wasted_share") == [
        ("borrowed", "preemption", 7, 42, 7 / 42),
        ("dedicated", "stale", 30, 69, 30 / 69),
        ("dedicated", "failed_attempt", 4, 69, 4 / 69),
    ]
    assert rows("borrowed_share_by_day", "borrowed_tokens", "dedicated_tokens", "borrowed_share") == [
        (35, 69, 35 / 104)
    ]


def test_what_an_rl_run_made_on_a_shared_fleet_has_the_pool_of_the_fleets_device(tmp_path, record, by_hand):
    made = turn("t", 2, ("s0", None, "lease"), run_id="grpo", fleet_run_id="r", output_tokens=7)
    root = record(tmp_path / "ledger", [_device("joined", 0), made])
    (found,) = by_hand(root, "borrowed_share_by_day", run_id="'grpo'")
    assert (found["borrowed_tokens"], found["tokens"], found["borrowed_share"]) == (7, 7, 1.0)


def test_device_time_is_shared_over_the_versions_of_a_step_to_the_nanosecond(rows):
    name = "device_time_per_accepted_by_version"
    # Step 0: 15 + 30 s, all of version 0. Step 1: 1 + 5 + 30 s, 20 of its 44 tokens of version 0.
    older = 45 * SECOND + 36 * SECOND * 20 // 44
    newer = 81 * SECOND - older
    counts = ("policy_version", "trajectories", "accepted", "audited", "correct", "output_tokens", "device_ns")
    assert rows(name, *counts) == [(0, 3, 2, 1, 1, 80, older), (1, 2, 0, 0, 0, 24, newer)]
    each = ("device_s_per_accepted", "device_s_per_correct", "tokens_per_accepted", "tokens_per_correct", "nano_usd")
    assert rows(name, *each) == [(pytest.approx(older / 2e9), pytest.approx(older / 1e9), 40, 80, None), (None,) * 5]
    money = ("nano_usd", "nano_usd_per_accepted", "nano_usd_per_correct")
    # 2.35 dollars an hour for 61.363636363 s and 19.636363637 s.
    usd = [round(Fraction(235, 100) * spent * 10**9 / (3600 * SECOND)) for spent in (older, newer)]
    assert rows(name, *money, rate_usd_per_hour="2.35") == [(usd[0], -(-usd[0] // 2), usd[0]), (usd[1], None, None)]
    assert sum(usd) == pytest.approx(2.35e9 * 81 / 3600, abs=1)


def test_a_placement_is_told_with_what_was_taken_back(rows):
    columns = ("turn", "attempt", "placement", "device_id", "lease_id", "began_at", "ended_at", "yields", "taken_back")
    # Both attempts were recorded at 95: the second took 4 s after 1 s of waiting, so the first ended at 90.
    assert rows("placement_of_turn", *columns, trajectory_id="'t2'") == [
        (0, 0, "lease", "s0", "L2", time(86), time(90), 0, "revoke: serving is late"),
        (0, 1, "queue", "d0", None, time(91), time(95), 0, None),
    ]
    assert rows("placement_of_turn", "turn", "placement", "lease_granted_at", trajectory_id="'t1'", turn="1") == [
        (1, "prefix", time(20))
    ]
    assert rows("placement_of_turn", "attempt", trajectory_id="'t2'", device_id="'d0'") == [1]


def test_a_preemption_is_told_with_the_load_of_serving(rows):
    columns = ("action", "serving_engine_id", "rollout_engine_id", "lease_id", "requests_in_flight", "serving_share")
    # In flight at 89.9: q3 since 88.5 and q4 since 89. At 40, 65 and 70: nothing.
    assert rows("who_preempted_whom", *columns) == [
        ("revoke", "s0-serving", "s0-rollout", "L2", 2, 20 / 30),
        ("yield", "s0-serving", "s0-rollout", "L2", 0, 20 / 30),
        ("yield", "s0-serving", "s0-rollout", "L2", 0, 20 / 30),
        ("yield", "s0-serving", "s0-rollout", "L2", 0, 20 / 30),
        ("cut", "s0-serving", "s0-rollout", "L1", 0, 10 / 30),
    ]
    assert rows("kv_cuts", "lease_id", "cut_bytes", "requests") == [("L1", 50, 1)]
    # Two yields with an event each, and three that share one.
    assert rows("longest_yields", "event_time", "yields", "duration_ns", "latency_ns") == [
        (time(70), 1, 3 * SECOND // 2, None),
        (time(65), 1, SECOND // 2, None),
        (time(75.5), 3, 3 * SECOND // 10, 4_000),
    ]


def test_headroom_has_a_cause(rows):
    columns = ("device_id", "leased", "reason", "holds", "held_ns", "held_share")
    assert rows("holds_by_reason", *columns) == [("s0", True, "regret", 5, SECOND, 1)]


def test_a_revocation_takes_until_the_lease_is_closed(rows):
    columns = ("action", "preemptions", "latency_p50_ns", "latency_max_ns", "off_device_max_ns")
    assert rows("preemption_latency", *columns) == [
        ("cut", 1, None, None, None),
        ("revoke", 1, *seconds(0.1, 0.1), None),
        ("yield", 5, *seconds(0.5, 1.5), 4_000),
    ]


def test_promises_are_counted_lent_and_not(rows):
    columns = ("lent", "requests", "failed", "ttft_kept", "slo_kept", "slo_share", "trace_length_scale")
    assert rows("slo_attainment_by_lease", *columns) == [(False, 1, 0, 1, 1, 1.0, 0.1), (True, 3, 1, 1, 1, 1 / 3, 0.1)]
    assert rows("ttft_tpot_percentiles_by_hour", "hour", "lent", "ttft_p99_ns") == [
        (time(0), False, 100),
        (time(0), True, 500),
    ]
    columns = ("request_id", "arrived_at", "yields_waited", "revocations")
    assert rows("slowest_requests", *columns)[:2] == [("q4", time(89), 0, 1), ("q3", time(88.5), 0, 1)]


def test_a_sync_counts_to_the_lease_it_was_done_for(rows):
    columns = ("device_id", "lease_id", "syncs", "failed", "wire_bytes", "dense_bytes")
    # That of s0 at 55 fell between L1 and L2.
    assert rows("sync_bytes_by_lease", *columns) == [("d0", None, 2, 1, 1040, 2000), ("s0", "L2", 1, 0, 100, 1000)]
    assert rows("sync_pause_percentiles", "pool", "encoding", "syncs", "pause_p50_ns") == [
        ("rollout", "dense", 1, 3 * SECOND // 100),
        ("serving", "delta", 1, SECOND // 100),
    ]
    assert rows("sync_failures", "engine_id", "reason", "made_good_at") == [
        ("d0-rollout", "the hash differs", time(56))
    ]


def test_the_phases_of_a_sync_are_told_apart_as_far_as_they_are_known(rows, sample, by_hand):
    columns = ("encoding", "syncs", "encode_p50_ns", "fetch_p50_ns", "verify_p50_ns", "acknowledge_p50_ns")
    assert rows("sync_phases", *columns) == [("delta", 1, None, None, None, None), ("dense", 1, None, 7, 3, 2)]
    for recorded in by_hand(sample, "sync_phases"):
        assert recorded["fetch_p50_ns"] > 0
        assert recorded["verify_p50_ns"] > 0
        assert recorded["acknowledge_p50_ns"] > 0


def test_leases_are_told_from_grant_to_close(rows):
    columns = ("closed_by", "close_reason", "leases", "leased_ns")
    assert sorted(rows("leases_by_close_reason", *columns), key=str) == [
        ("open", None, 1, None),
        ("preempted", "serving is late", 1, 30 * SECOND),
        ("released", "rollouts are in", 1, 30 * SECOND),
    ]
    # L3 was granted at 95 until 98, and the run's newest event is of 100.
    assert rows("open_leases", "lease_id", "open_ns") == [("L3", 5 * SECOND)]
    assert rows("lease_timeline", "kind", "action", "since_grant_ns", lease_id="'L2'") == [
        ("lease", "granted", 0),
        ("preemption", "yield", 5 * SECOND),
        ("preemption", "yield", 10 * SECOND),
        ("preemption", "yield", 15_500_000_000),
        ("preemption", "revoke", 29_900_000_000),
        ("lease", "preempted", 30 * SECOND),
    ]


def test_engines_have_lives_and_starting_them_a_price(rows):
    columns = ("engine_id", "started_at", "start_ns", "ended_by", "reason", "life_ns")
    assert rows("engine_lives", *columns)[-2:] == [
        ("s0-serving", time(0), 4 * SECOND, None, None, None),
        ("d0-rollout", time(65), 3 * SECOND, "stopped", None, 35 * SECOND),
    ]
    first = ("d0-rollout", time(0), 2 * SECOND, "died", "the process ended", 60 * SECOND)
    assert rows("engine_lives", *columns)[0] == first
    columns = ("device_id", "starts", "deaths", "activation_ns", "activation_share")
    assert rows("activation_overhead", *columns) == [("d0", 2, 1, 0, 0), ("s0", 2, 0, 4 * SECOND, 0.04)]


def test_turns_are_told_by_placement_queue_and_cache(rows):
    columns = ("placement", "pool", "attempts", "completed", "preempted", "failed", "output_tokens", "cached_share")
    assert rows("turns_by_placement", *columns) == [
        ("least_loaded", "rollout", 3, 2, 0, 1, 54, 0),
        ("lease", "serving", 2, 1, 1, 0, 25, 0),
        ("prefix", "serving", 1, 1, 0, 0, 10, 0.8),
        ("queue", "rollout", 1, 1, 0, 0, 15, pytest.approx(1 / 3)),
    ]
    # The prompt of t2 was computed again on d0, but for 5 tokens.
    columns = ("device_id", "prompt_tokens", "cached_tokens", "later_cached_share", "recomputed_tokens")
    assert rows("prefix_cache_hit_share", *columns) == [("d0", 45, 5, None, 10), ("s0", 50, 24, 0.8, 0)]
    columns = ("step", "attempts", "waited", "queue_p50_ns", "queue_max_ns")
    assert rows("queue_time_percentiles", *columns) == [(0, 3, 0, 0, SECOND // 10), (1, 4, 1, 0, SECOND)]


def test_staleness_and_steps_are_told(rows):
    columns = ("staleness", "trajectories", "share", "dropped", "output_tokens")
    assert rows("staleness_distribution", *columns) == [(0, 3, 0.6, 0, 54), (1, 1, 0.2, 0, 20), (2, 1, 0.2, 1, 30)]
    assert rows("step_progress", "step", "accepted_share", "other_ns") == [(0, 0.5, SECOND), (1, 1 / 3, SECOND)]


def test_a_run_is_told_in_one_row(rows):
    columns = ("status", "devices", "leases", "preemptions", "yields", "syncs", "syncs_failed", "steps", "trajectories")
    columns += ("accepted", "accepted_share", "output_tokens", "requests", "slo_share")
    # Of t1, t2 and t5, which are judged and not stale, t1 and t5 are accepted.
    assert rows("run_overview", *columns) == [("ended", 2, 3, 2, 5, 3, 1, 2, 5, 2, 2 / 3, 104, 4, 0.5)]


def test_a_run_that_was_resumed_has_the_reason_of_its_last_end(tmp_path, record, by_hand):
    actions = (("started", None), ("ended", "not heard of"), ("started", None), ("ended", None))
    made = [Run(at_us=at(n), action=action, name="grpo", reason=reason) for n, (action, reason) in enumerate(actions)]
    (found,) = by_hand(record(tmp_path / "ledger", made), "run_overview")
    assert (found["status"], found["reason"]) == ("ended", None)


def test_energy_is_power_by_time(rows):
    columns = ("metered_ns", "energy_j", "power_mean_w", "power_max_w")
    # 100 W for 50 s and 200 W for 50 s.
    assert rows("energy_by_device_and_day", *columns) == [(100 * SECOND, 15_000, 150, 200)]


def test_what_was_dropped_is_listed_by_kind(rows):
    assert rows("dropped_events", "dropped_kind", "events", "amounts_json") == [
        ("request", 1, '{"count":1}'),
        ("turn", 3, '{"count":3,"output_tokens":9}'),
    ]
    grown = dict(rows("ledger_growth", "kind", "events"))
    assert (grown["lease"], grown["turn"], sum(grown.values())) == (7, 7, 62)
    assert rows("late_writers", "writer", "newest_at", "behind_ns") == [("w-live", time(100), 0)]
    assert rows("late_writers", "writer", status="'ended'") == ["w-live"]
    assert rows("late_writers", "writer", status="'running'") == []


def _device(action, seconds, **fields):
    usual = {"device_id": "s0", "pool": "serving", "device_class": "c"}
    return Device(at_us=at(seconds), action=action, t_ns=ns(seconds), **{**usual, **fields})


def _idle(t0, t1, device_id="s0", **fields):
    rest = dict.fromkeys(("serving_ns", "rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns"), 0)
    times = {"at_us": at(t1), "t0_ns": ns(t0), "t1_ns": ns(t1), "idle_ns": ns(t1) - ns(t0)}
    return DeviceSlice(device_id=device_id, **times, **rest, **fields)


#: Slices of a device that joined at 0, how it ended, and what is wrong with its time.
ACCOUNTS = [
    ([(0, 10), (10, 30)], "left", []),
    ([(0, 10)], None, []),
    ([], None, []),
    ([(0, 10), (12, 30)], "left", [(10, 12, "in no slice")]),
    ([(0, 12), (10, 30)], "left", [(12, 30, "in no slice")]),
    ([(2, 30)], "left", [(0, 2, "in no slice")]),
    ([(-2, 30)], "left", [(0, 30, "in no slice")]),
    ([(0, 20)], "left", [(20, 30, "in no slice")]),
    ([(0, 40)], "left", [(0, 30, "in no slice")]),
    ([], "left", [(0, 30, "in no slice")]),
    ([(0, 20)], "failed", [(20, 30, "in no slice")]),
    ([(0, 10), (20, 30)], "away", []),
    ([(0, 12), (21, 30)], "away", [(0, 10, "in no slice"), (20, 21, "in no slice")]),
    ([(0, 10), (18, 30)], "away", [(20, 30, "in no slice")]),
    ([(0, 5)], "never joined", [(0, 5, "the device never joined")]),
]


def test_a_gap_and_an_overlap_of_slices_are_found(tmp_path, record, by_hand):
    """Each case is a device, in the run that goes on or in the one that failed."""
    made = []
    for run_id in ("r", "failed"):
        made.append(Run(at_us=at(0), action="started", name="n", run_id=run_id))
    made.append(Run(at_us=at(30), action="failed", name="n", run_id="failed"))
    for number, (slices, end, _) in enumerate(ACCOUNTS):
        own = {"device_id": f"d{number:02}", "run_id": "failed" if end == "failed" else "r"}
        ends = {"left": [("left", 30)], "away": [("left", 10), ("joined", 20), ("left", 30)]}
        begins = [] if end == "never joined" else [("joined", 0)]
        made += [_device(action, seconds, **own) for action, seconds in (*begins, *ends.get(end or "", []))]
        made += [_idle(*span, **own) for span in slices]
    found = by_hand(record(tmp_path / "ledger", made), "unaccounted_device_time")
    for number, (_, _, faults) in enumerate(ACCOUNTS):
        rows = [row for row in found if row["device_id"] == f"d{number:02}"]
        assert [(row["from_ns"], row["to_ns"], row["fault"]) for row in rows] == [
            (ns(begin), ns(stop), fault) for begin, stop, fault in faults
        ], ACCOUNTS[number]
        assert [row["ns"] for row in rows] == [(stop - begin) * SECOND for begin, stop, _ in faults]
