-- One row for each change in the life of an engine: one SGLang server on a device.
--
-- action: `started`, `activated`, `deactivated`, `stopped` or `died`. A serving engine that its owner starts and stops
--     is `attached` and `detached`, or `refused` if nothing can be lent beside it.
-- fleet_run_id: The fleet's run; two fleets may use the same engine ids.
CREATE OR REPLACE VIEW engine AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time, coalesce(fleet_run_id, run_id) AS fleet_run_id,
    engine_id, device_id, lease_id, trajectory_id, action, role, model, policy_version, pid, kv_bytes, duration_ns,
    memory_mechanism, compute_mechanism, reason, moved_bytes
FROM event
WHERE kind = 'engine' AND reckonable('engine');
