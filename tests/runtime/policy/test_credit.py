import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy import slack
from rose.runtime.policy.credit import (
    FACTOR_GUESSED,
    FACTOR_MIN,
    FIRST_TOKEN_STRETCH,
    LEARNED_STEPS,
    STRETCH_MAX,
    Credit,
    CreditFacts,
    Interference,
    LiveRequest,
    grant,
    room_in_memory,
    share_of_busy,
)
from rose.runtime.policy.slack import Hold, LeaseTerms
from tests.runtime.policy.test_slack import FACTS as STEP

MS = 1_000_000
NOW = 5_000 * MS
LEASE = LeaseTerms(number=1, expires_ns=NOW + 3_000 * MS, stretch=1.25, slack_share=1.0)
FACTS = CreditFacts(
    lease=LEASE,
    ttft_budget_ns=500 * MS,
    live=[LiveRequest(elapsed_ns=1_000 * MS, lent_ns=0, work_ns=0, due_ns=NOW + 50 * MS)],
    step_ns=8 * MS,
    fewer_decode_ns=8 * MS,
    spread_ns=0.0,
    largest_prefill_ns=100 * MS,
    usual_prefill_ns=100 * MS,
    layer_ns=0,
    room_in_memory=True,
    others=False,
    control=False,
    interference=Interference(),
    now_ns=NOW,
)
YOUNG = FACTS.live[0]._replace(elapsed_ns=40 * MS)

_requests = st.builds(
    LiveRequest,
    elapsed_ns=st.none() | st.integers(0, 10_000 * MS),
    lent_ns=st.integers(0, 100 * MS),
    work_ns=st.integers(0, 2_000 * MS),
    due_ns=st.integers(NOW - 50 * MS, NOW + 500 * MS),
)
_facts = st.builds(
    lambda stretch, share, **others: replace(FACTS, lease=replace(LEASE, stretch=stretch, slack_share=share), **others),
    stretch=st.floats(1, 20),
    share=st.floats(0, 1),
    live=st.lists(_requests, max_size=4),
    step_ns=st.none() | st.integers(1, 100 * MS),
    fewer_decode_ns=st.none() | st.integers(1, 100 * MS),
    spread_ns=st.floats(0, 5 * MS),
    largest_prefill_ns=st.none() | st.integers(0, 600 * MS),
    usual_prefill_ns=st.none() | st.integers(0, 600 * MS),
    layer_ns=st.integers(0, 5 * MS),
    room_in_memory=st.booleans(),
    others=st.booleans(),
    control=st.booleans(),
    interference=st.builds(Interference, halved=st.booleans(), paused_until_ns=st.sampled_from([0, NOW + 1])),
)

#: Facts under which most requests leave something, and budgets decide how much.
_permissive = st.builds(
    lambda **times: replace(FACTS, lease=replace(LEASE, stretch=20.0), **times),
    live=st.lists(
        st.builds(
            LiveRequest,
            elapsed_ns=st.integers(100 * MS, 10_000 * MS),
            lent_ns=st.integers(0, 50 * MS),
            work_ns=st.integers(0, 50 * MS),
            due_ns=st.integers(NOW, NOW + 500 * MS),
        ),
        min_size=1,
        max_size=4,
    ),
    step_ns=st.integers(1, 20 * MS),
    largest_prefill_ns=st.integers(0, 300 * MS),
    layer_ns=st.integers(0, 5 * MS),
)


@given(_facts | _permissive)
def test_a_credit_never_delays_a_step_by_more_than_its_slack_or_a_request_by_more_than_its_stretch(facts):
    credit = grant(facts)
    assert (credit.work_ns == 0) == (credit.until_ns == 0)
    if not credit.work_ns:
        return
    delay_ns = facts.interference.factor * credit.work_ns
    assert facts.step_ns + delay_ns + facts.largest_prefill_ns <= facts.ttft_budget_ns
    for one in facts.live:
        assert facts.now_ns + facts.step_ns + delay_ns <= one.due_ns
        delayed_ns = facts.interference.factor * one.work_ns
        alone_ns = max(0, one.elapsed_ns - one.lent_ns - delayed_ns) + facts.step_ns
        limit = facts.lease.stretch - 1 if facts.lease.stretch < STRETCH_MAX else inf
        assert delayed_ns + delay_ns <= limit * alone_ns + 1


@given(_facts, st.floats(1, 20), st.floats(0, 1))
def test_more_of_either_knob_never_gives_less(facts, stretch, share):
    more = replace(
        facts.lease, stretch=max(stretch, facts.lease.stretch), slack_share=max(share, facts.lease.slack_share)
    )
    assert grant(replace(facts, lease=more)).work_ns >= grant(facts).work_ns


@given(_permissive, st.integers(0, 3), st.integers(0, 500 * MS))
def test_tightening_one_live_request_s_budget_never_gives_more(facts, index, by_ns):
    live = [one._replace(due_ns=one.due_ns - by_ns * (place == index)) for place, one in enumerate(facts.live)]
    for tight in (replace(facts, live=live), replace(facts, ttft_budget_ns=facts.ttft_budget_ns - by_ns)):
        assert grant(tight).work_ns <= grant(facts).work_ns


@given(_facts)
def test_no_stretch_or_no_share_is_the_rule_without_credit(facts):
    for lease in (replace(facts.lease, stretch=1.0), replace(facts.lease, slack_share=0.0)):
        assert grant(replace(facts, lease=lease)).work_ns == 0


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"lease": LeaseTerms()}, Hold.NO_LEASE),
        ({"lease": replace(LEASE, expires_ns=NOW)}, Hold.NO_LEASE),
        ({"live": []}, Hold.SERVING_STEP),
        ({"step_ns": None}, Hold.UNKNOWN_TIMES),
        ({"largest_prefill_ns": None}, Hold.UNKNOWN_TIMES),
        ({"room_in_memory": False}, Hold.SERVING_MEMORY),
        ({"others": True}, Hold.INTERFERENCE),
        ({"interference": Interference(paused_until_ns=NOW + 1)}, Hold.INTERFERENCE),
        ({"control": True}, Hold.CONTROL),
        ({"live": [*FACTS.live, FACTS.live[0]._replace(due_ns=NOW + 5 * MS)]}, Hold.DECODE_SLACK),
        ({"ttft_budget_ns": 0}, Hold.NEXT_REQUEST),
        ({"largest_prefill_ns": 500 * MS}, Hold.NEXT_REQUEST),
        ({"live": [FACTS.live[0]._replace(work_ns=200 * MS), *FACTS.live]}, Hold.STRETCH),
    ],
)
def test_a_credit_is_refused_where_it_could_harm_and_says_why(changes, limit):
    credit = grant(replace(FACTS, **changes))
    assert (credit.work_ns, credit.until_ns, credit.limit) == (0, 0, limit)


def test_a_credit_is_what_the_tightest_limit_pays_for():
    assert grant(FACTS).work_ns == int(42 * MS / FACTOR_GUESSED)
    assert grant(replace(FACTS, interference=Interference(halved=True))).work_ns == int(21 * MS / FACTOR_GUESSED)
    young = [*FACTS.live, YOUNG]
    assert grant(replace(FACTS, live=young)).work_ns == int(0.25 * 48 * MS / FACTOR_GUESSED)
    assert grant(replace(FACTS, live=young)).limit is Hold.STRETCH
    assert grant(replace(FACTS, layer_ns=2 * MS, spread_ns=1 * MS)).work_ns == int(35 * MS / FACTOR_GUESSED)


def test_before_its_first_token_a_request_gives_what_its_budget_leaves_or_nothing():
    new = LiveRequest(elapsed_ns=None, lent_ns=0, work_ns=0, due_ns=NOW + 100 * MS)
    beside = replace(FACTS, live=[new, new._replace(elapsed_ns=1_000 * MS)])
    assert grant(beside) == Credit(0, 0, Hold.STRETCH)
    credit = grant(replace(beside, lease=replace(LEASE, stretch=100.0)))
    assert (credit.work_ns, credit.limit) == (round((100 - 8) * MS / FACTOR_GUESSED), Hold.DECODE_SLACK)


@pytest.mark.parametrize(("fewer_ms", "part"), [(8, 0.25), (7.2, 0.125), (6.4, 0.0), (None, -1.0)])
def test_where_more_requests_make_longer_steps_less_is_given(fewer_ms, part):
    """With 10% of a step's length from its batch, half of what a stretch of 1.25 allows goes to the longer steps."""
    fewer_ns = None if fewer_ms is None else round(fewer_ms * MS)
    young = replace(FACTS, live=[YOUNG], fewer_decode_ns=fewer_ns)
    assert grant(young).work_ns == pytest.approx(max(0.0, part) * 48 * MS / FACTOR_GUESSED, abs=1)


@given(
    base=st.integers(MS, 100 * MS),
    each=st.integers(0, 20 * MS),
    requests=st.integers(1, 60),
    prefill_ns=st.integers(0, 500 * MS),
    stretch=st.floats(1.01, 2.29),
)
def test_longer_steps_of_more_requests_never_stretch_a_first_token_beyond_its_limit(
    base, each, requests, prefill_ns, stretch
):
    """Where `requests` are alive, serving alone would have fewer: by the factor by which their tokens take longer."""
    old = FACTS.live[0]._replace(elapsed_ns=10**15, due_ns=NOW + 10**12)
    step_ns = base + each * requests
    credit = grant(
        replace(
            FACTS,
            lease=replace(LEASE, stretch=stretch),
            live=[old],
            step_ns=step_ns,
            fewer_decode_ns=round(base + each * requests / stretch),
            usual_prefill_ns=prefill_ns,
            ttft_budget_ns=10**16,
        )
    )
    # In the long run each step takes `longer` times as long as such a step alone, and a request `stretch_made` times.
    longer = 1 + FACTOR_GUESSED * credit.work_ns / (10**15 + step_ns)
    stretches = (1 + thousandths / 1000 for thousandths in range(1500))
    stretch_made = next(made for made in stretches if made * base + each * requests >= longer * step_ns)
    alone_ns = prefill_ns + 2 * (base + each * requests / stretch_made)
    assert prefill_ns + 2 * step_ns + (longer - 1) * step_ns / 2 <= FIRST_TOKEN_STRETCH * alone_ns * 1.001
    assert stretch_made <= stretch * 1.001


BUSY = replace(STEP, load=replace(STEP.load, wanted=True))


@pytest.mark.parametrize(
    ("changes", "admitted", "hold"),
    [
        ({}, False, Hold.SERVING_STEP),
        ({"credit_limit": Hold.STRETCH}, False, Hold.STRETCH),
        ({"credit_ns": 1}, True, Hold.NONE),  # A layer of unknown time: only its first run can tell.
        ({"credit_ns": 4 * MS, "layer_ns": 2 * MS}, True, Hold.NONE),
        ({"credit_ns": 4 * MS - 1, "layer_ns": 2 * MS}, False, Hold.SERVING_STEP),
        ({"credit_ns": MS, "lease": LeaseTerms()}, False, Hold.NO_LEASE),
        ({"credit_ns": MS, "load": None}, False, Hold.NO_SERVING),
        ({"credit_ns": MS, "kv_tokens": 1001}, False, Hold.KV_BUDGET),
        ({"credit_ns": MS, "busy_share": 1.1}, False, Hold.COMPUTE_SHARE),
    ],
)
def test_a_step_begins_beside_serving_only_on_credit(changes, admitted, hold):
    decision = slack.admit(replace(BUSY, **changes))
    assert (decision.admitted, decision.hold, decision.on_credit) == (admitted, hold, admitted)


def test_a_step_while_serving_rests_is_on_no_credit():
    decision = slack.admit(replace(STEP, credit_ns=MS))
    assert decision.admitted
    assert not decision.on_credit


def learned(factor, steps, *, noise_ms=0.2, known=None, seed=0, outlier_every=0):
    known = known or Interference()
    draw = random.Random(seed)
    for step in range(steps):
        work_ns = draw.randint(1, 8) * MS
        delay_ns = factor * work_ns + draw.gauss(0, noise_ms) * MS
        if outlier_every and step % outlier_every == outlier_every - 1:
            delay_ns += 40 * MS
        known = known.observe(work_ns, int(delay_ns), noise_ms * MS, NOW + step)
    return known


@pytest.mark.parametrize("factor", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("outlier_every", [0, 20])
def test_the_factor_is_learned_within_a_tenth(factor, outlier_every):
    assert learned(factor, 200, outlier_every=outlier_every).factor == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize(("before", "after"), [(1.2, 2.0), (2.0, 1.2)])
def test_the_factor_follows_a_device_that_changes(before, after):
    assert learned(after, 200, known=learned(before, 200)).factor == pytest.approx(after, rel=0.1)


def test_the_factor_is_a_guess_at_first_and_never_below_what_time_slices_cost():
    assert learned(1.2, LEARNED_STEPS - 1).factor == FACTOR_GUESSED
    assert learned(0.3, 100).factor == FACTOR_MIN


def test_a_third_competitor_halves_the_credit_then_stops_it_for_longer_and_longer():
    known, paused = learned(1.2, 100), []
    now_ns = NOW
    while len(paused) < 8:
        now_ns = max(now_ns + 10 * MS, known.paused_until_ns)
        known = known.observe(4 * MS, 30 * MS + len(paused) * 30 * MS, 0.2 * MS, now_ns)
        if known.paused_until_ns > now_ns:
            assert known.halved
            paused.append((known.paused_until_ns - now_ns) // (1_000 * MS))
    assert paused == [1, 2, 4, 8, 16, 32, 60, 60]
    recovered = learned(1.2, 300, known=known)
    assert not recovered.halved
    assert recovered.pause_ns == Interference().pause_ns


def test_serving_that_never_rests_is_worth_borrowing_for_what_its_owner_allows():
    assert [share_of_busy(stretch, 1.0) for stretch in (1.0, 1.25, 100.0)] == [
        0.0,
        pytest.approx(0.2),
        share_of_busy(2.3, 1),
    ]
    assert share_of_busy(100.0, 0.0) == 0.0


def test_memory_has_to_hold_as_many_times_more_requests_as_they_take_longer():
    for stretch, most in ((1.25, 800), (2.0, 500), (100.0, 434)):
        assert room_in_memory(used=most, total=1000, stretch=stretch)
        assert not room_in_memory(used=most + 1, total=1000, stretch=stretch)
