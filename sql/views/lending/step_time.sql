-- How well step times are predicted: one row for each engine, mode and minute.
--
-- role: `serving` or `rollout`.
-- mode: `prefill` or `decode`.
-- error_share: Mean of |predicted - measured| / measured over the last steps of the mode. Each step was predicted
--     before it was learned from, and counts as 0 to 1.
CREATE OR REPLACE VIEW step_time AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, policy_version, role, mode, steps, error_share
FROM event
WHERE kind = 'step_time' AND reckonable('step_time');
