from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy import routing
from rose.runtime.policy.routing import SLOWER_MAX, STALLED_MIN_NS, STALLED_PACES, RunningTurn, TurnFacts
from tests.runtime.policy.workers import BORROWED, DEDICATED, NOW_NS, workers

TURN = TurnFacts(prefix_engine_id=None, version_min=3)


def place(turn, table):
    return routing.place(turn, table, NOW_NS)


def stalled(turns, table):
    return routing.stalled(turns, table, NOW_NS)


def test_a_turn_returns_to_the_worker_that_holds_its_prefix():
    turn = replace(TURN, prefix_engine_id="dedicated")
    assert place(turn, [replace(BORROWED, in_flight=3), replace(DEDICATED, in_flight=7)]).reason == "prefix"


def test_a_turn_leaves_a_worker_that_is_far_slower_than_another():
    turn = replace(TURN, prefix_engine_id="dedicated")
    borrowed = replace(BORROWED, pace_ns=100, pace_turns=7.0)
    for pace_ns, reason in ((200, "prefix"), (201, "lease")):
        assert place(turn, [borrowed, replace(DEDICATED, pace_ns=pace_ns, pace_turns=7.0)]).reason == reason


def test_borrowed_capacity_comes_first_unless_it_is_far_slower():
    assert place(TURN, [DEDICATED, replace(BORROWED, in_flight=1)]).engine_id == "borrowed"
    assert place(TURN, [DEDICATED, replace(BORROWED, in_flight=2)]).engine_id == "dedicated"
    dedicated = replace(DEDICATED, pace_ns=100, pace_turns=7.0)
    for pace_ns, engine_id in ((200, "borrowed"), (201, "dedicated")):
        assert place(TURN, [dedicated, replace(BORROWED, pace_ns=pace_ns, pace_turns=7.0)]).engine_id == engine_id


def test_the_more_turns_run_side_by_side_the_longer_one_is_expected_to_take():
    busy = replace(DEDICATED, pace_ns=100, pace_turns=3.0)
    assert [replace(busy, in_flight=count).expected_ns(NOW_NS) for count in (0, 3, 5, 7)] == [100, 100, 150, 200]
    assert place(TURN, [replace(busy, in_flight=5), replace(busy, engine_id="other", in_flight=4)]).engine_id == "other"


def test_an_engine_that_has_completed_nothing_for_longer_is_slower_now():
    stuck = replace(BORROWED, pace_ns=100, pace_turns=7.0, in_flight=1, busy_since_ns=NOW_NS - 201)
    dedicated = replace(DEDICATED, pace_ns=100, pace_turns=7.0)
    assert (stuck.turn_ns(NOW_NS - 200), stuck.turn_ns(NOW_NS)) == (100, 201)
    assert place(TURN, [dedicated, stuck]).engine_id == "dedicated"
    assert place(TURN, [dedicated, replace(stuck, busy_since_ns=NOW_NS - 200)]).engine_id == "borrowed"
    assert replace(stuck, pace_ns=0).turn_ns(NOW_NS) == 0, "nobody knows yet"


def test_an_unknown_pace_counts_as_the_slowest_known_and_hides_no_other():
    slow, quick = (
        replace(DEDICATED, engine_id=name, pace_ns=ns, pace_turns=7.0) for name, ns in (("a", 300), ("b", 100))
    )
    assert place(TURN, [slow, replace(quick, in_flight=6)]).engine_id == "b"
    new = replace(DEDICATED, engine_id="new")
    assert place(TURN, [slow, replace(quick, in_flight=6), new]).engine_id == "b", "new engines stop no comparison"
    assert place(TURN, [slow, replace(new, pace_turns=7.0)]).engine_id in ("a", "new")
    assert place(TURN, [replace(new, in_flight=3), replace(new, engine_id="other", in_flight=2)]).engine_id == "other"


def test_a_device_without_slack_takes_turns_only_if_nothing_else_can():
    tight = replace(BORROWED, slack_ok=False)
    assert place(TURN, [tight, replace(DEDICATED, in_flight=7)]).engine_id == "dedicated"
    assert place(TURN, [tight, replace(DEDICATED, in_flight=8)]).engine_id == "borrowed"
    assert place(replace(TURN, prefix_engine_id="borrowed"), [tight, DEDICATED]).engine_id == "dedicated"


def test_a_lease_in_force_is_enough_however_long_the_turn_may_be():
    assert place(TURN, [replace(BORROWED, lease_until_ns=NOW_NS + 1)]).reason == "lease"
    assert place(TURN, [replace(BORROWED, lease_until_ns=NOW_NS)]).reason == "queue"


def test_a_turn_does_not_return_to_an_engine_that_it_avoids():
    turn = replace(TURN, prefix_engine_id="borrowed", avoid=frozenset({"borrowed"}))
    assert place(turn, [BORROWED, replace(DEDICATED, in_flight=7)]).engine_id == "dedicated"
    assert place(turn, [BORROWED]).reason == "queue"


def test_the_staleness_bound_holds_even_for_the_prefix_holder():
    turn = replace(TURN, prefix_engine_id="dedicated", version_min=4)
    assert place(turn, [DEDICATED]).engine_id is None


@given(
    workers,
    st.integers(0, 5),
    st.frozensets(st.sampled_from("abcdef"), max_size=3),
    st.none() | st.sampled_from("abcdef"),
)
def test_a_placement_always_keeps_the_rules(table, version_min, avoid, holder):
    placement = place(TurnFacts(holder, version_min, avoid), table)
    chosen = next((worker for worker in table if worker.engine_id == placement.engine_id), None)
    eligible = [
        worker
        for worker in table
        if worker.alive_until_ns > NOW_NS
        and worker.engine_id not in avoid
        and worker.policy_version >= version_min
        and worker.in_flight < worker.capacity
        and (worker.lease_until_ns is None or worker.lease_until_ns > NOW_NS)
    ]
    assert (chosen is None) == (not eligible)
    assert chosen is None or chosen in eligible
    ready = [worker for worker in eligible if worker.slack_ok]
    assert chosen is None or chosen.slack_ok == bool(ready)
    if ready and all(worker.pace_ns for worker in ready):
        assert chosen.expected_ns(NOW_NS) <= SLOWER_MAX * min(worker.expected_ns(NOW_NS) for worker in ready)


def running(number, running_ns, engine_id="borrowed", version_min=3):
    return RunningTurn(f"r{number}", engine_id, version_min, running_ns)


PACE = 10 * STALLED_MIN_NS
IDLE = replace(DEDICATED, pace_ns=PACE, in_flight=6)


def test_turns_that_wait_on_a_lent_device_are_taken_off_for_room_elsewhere():
    turns = [running(number, STALLED_PACES * PACE + number) for number in range(4)]
    assert [turn.request_id for turn in stalled(turns, [BORROWED, IDLE])] == ["r3", "r2"]
    assert stalled([running(0, STALLED_PACES * PACE)], [BORROWED, IDLE]) == []


def test_a_long_prompt_is_not_stalled_before_it_would_be_done_elsewhere():
    other = replace(IDLE, pace_tokens=100.0)
    for tokens, paces in ((50, 1), (100, 1), (2600, 26)):
        for late, stalls in ((0, []), (1, ["r0"])):
            turn = replace(running(0, STALLED_PACES * PACE * paces + late), tokens=tokens)
            assert [one.request_id for one in stalled([turn], [BORROWED, other])] == stalls


def test_a_turn_is_not_taken_off_for_an_engine_that_would_be_no_better():
    long = [running(0, 10 * STALLED_PACES * PACE)]
    for other in (
        replace(IDLE, alive_until_ns=NOW_NS),
        replace(IDLE, slack_ok=False),
        replace(IDLE, pace_ns=0),
        replace(IDLE, in_flight=8),
        replace(IDLE, policy_version=2),
        replace(IDLE, lease_until_ns=NOW_NS),
    ):
        assert stalled(long, [BORROWED, other]) == []
    assert stalled([running(0, 10 * STALLED_PACES * PACE, "dedicated")], [BORROWED, IDLE]) == []
