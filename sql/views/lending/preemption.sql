-- Preemptions of rollout engines by serving. A cut or a revocation is one row; yields are one row for each lease and
-- second, which says how many there were.
--
-- event_time: When it happened, UTC, to the microsecond; for yields, when the first began.
-- action: `yield` (a running rollout step waited between layers), `cut` (the KV budget was reduced) or `revoke` (the
--     whole lease ended).
-- rl_run_id: The RL run that the engine was assigned to; `run_id` if none is named.
-- duration_ns: How long the yields lasted together, or the cut took, nanoseconds.
-- count: Yields of the row; NULL means one.
-- longest_ns: The longest yield of the row, nanoseconds; NULL if `count` is NULL: then it is duration_ns.
CREATE OR REPLACE VIEW preemption AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    action, reason, device_id, engine_id, lease_id, trajectory_id, policy_version,
    coalesce(rl_run_id, run_id) AS rl_run_id, step, duration_ns,
    requests, tokens_kept, tokens_lost, kv_budget_bytes_before, kv_budget_bytes_after,
    count, longest_ns, latency_ns, latency_mean_ns, returned_bytes
FROM event
WHERE kind = 'preemption' AND reckonable('preemption');
