from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.drift import RETRY_NS, Standing, next_action

HOLDS = Standing(held=True, trusted=True, looked_ns=100)
times = st.integers(0, 10**12)


def test_an_engine_that_was_not_looked_at_for_long_is_audited():
    assert next_action(HOLDS, 50, 149) == "wait"
    assert next_action(HOLDS, 50, 150) == "audit"
    assert next_action(HOLDS, 0, 10**15) == "wait", "audits are turned off"
    assert next_action(Standing(held=False, trusted=True, looked_ns=0), 50, 10**9) == "wait"


@given(every=times, looked=times, later=times)
def test_an_engine_that_is_not_trusted_is_brought_back_at_once_whatever_else(every, looked, later):
    drifted = Standing(held=True, trusted=False, looked_ns=looked)
    assert next_action(drifted, every, looked + later) == "resync"


@given(failures=st.integers(1, 50), later=times)
def test_each_failure_makes_the_next_attempt_wait_longer(failures, later):
    drifted = Standing(held=True, trusted=False, looked_ns=0, failures=failures)
    assert next_action(drifted, 1, later) == ("resync" if later >= failures * RETRY_NS else "wait")


@given(every=st.integers(1, 10**12), now=times)
def test_a_trusted_engine_is_never_brought_back(every, now):
    assert next_action(HOLDS, every, 100 + now) in ("audit", "wait")
