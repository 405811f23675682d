-- One row for each change of a lease, as it was written.
--
-- action: `granted`, `renewed`, `throttled`, `restored`, `resized`, `frozen`, `released`, `preempted` or `expired`.
-- rl_run_id: The RL run that the engine was assigned to; `run_id` if none is named.
-- expires_at: When the lease ends unless it is renewed, UTC.
CREATE OR REPLACE VIEW lease_event AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    lease_id, action, device_id, engine_id, trajectory_id, policy_version,
    kv_budget_bytes, compute_share,
    CASE WHEN expires_at_us BETWEEN 0 AND 4611686018427387 THEN make_timestamp(expires_at_us) END AS expires_at,
    coalesce(rl_run_id, run_id) AS rl_run_id, step, reason
FROM event
WHERE kind = 'lease' AND reckonable('lease');
