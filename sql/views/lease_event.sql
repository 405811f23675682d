-- One row for each change of a lease, as it was written.
--
-- action: `granted`, `renewed`, `resized`, `frozen`, `released`, `preempted` or `expired`.
-- expires_at: When the lease ends unless it is renewed, UTC.
CREATE OR REPLACE VIEW lease_event AS
SELECT
    writer, seq, event_id, run_id, provenance, event.at,
    lease_id, action, device_id, engine_id, trajectory_id, policy_version,
    kv_budget_bytes, compute_share, make_timestamp(expires_at_us) AS expires_at, step, reason
FROM event
WHERE kind = 'lease';
