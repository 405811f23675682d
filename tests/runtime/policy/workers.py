"""Workers that could take a turn: one on a device of its own, one under a lease, and any."""

from __future__ import annotations

from hypothesis import strategies as st

from rose.runtime.policy.routing import WorkerFacts

DEDICATED = WorkerFacts("dedicated", True, 3, 0, 8, None, True)
BORROWED = WorkerFacts("borrowed", True, 3, 0, 8, 1000, True)

workers = st.lists(
    st.builds(
        WorkerFacts,
        engine_id=st.sampled_from("abcdef"),
        alive=st.booleans(),
        policy_version=st.integers(0, 5),
        in_flight=st.integers(0, 10),
        capacity=st.integers(0, 10),
        lease_left_ns=st.none() | st.integers(0, 1000),
        slack_ok=st.booleans(),
        pace_ns=st.integers(0, 1000),
        pace_turns=st.floats(0, 10),
    ),
    unique_by=lambda worker: worker.engine_id,
)
