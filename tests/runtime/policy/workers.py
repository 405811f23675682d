from hypothesis import strategies as st

from rose.runtime.policy.routing import WorkerFacts

NOW_NS = 10_000
DEDICATED = WorkerFacts("dedicated", 3, 0, 8, True, NOW_NS + 1, None)
BORROWED = WorkerFacts("borrowed", 3, 0, 8, True, NOW_NS + 1, NOW_NS + 1000)

workers = st.lists(
    st.builds(
        WorkerFacts,
        engine_id=st.sampled_from("abcdef"),
        policy_version=st.integers(0, 5),
        in_flight=st.integers(0, 10),
        capacity=st.integers(0, 10),
        slack_ok=st.booleans(),
        alive_until_ns=st.sampled_from([0, NOW_NS, NOW_NS + 1]),
        lease_until_ns=st.none() | st.integers(NOW_NS - 1000, NOW_NS + 1000),
        pace_ns=st.integers(0, 1000),
        pace_turns=st.floats(0, 10),
        busy_since_ns=st.none() | st.integers(NOW_NS - 2000, NOW_NS),
    ),
    unique_by=lambda worker: worker.engine_id,
)
