-- One row for each judgement of the verifier on a trajectory.
CREATE OR REPLACE VIEW verdict AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    device_id, engine_id, lease_id, trajectory_id, group_id, step, policy_version, verifier, verifier_version,
    reward, threshold, accepted, correct, stale
FROM event
WHERE kind = 'verdict' AND reckonable('verdict');
