-- One row for each time that an engine reached a policy version, failed to reach it, or was found to hold it no longer.
--
-- event_time: When the sync was done or given up, UTC, to the microsecond; it began total_ns earlier.
-- ok: Whether the engine holds the version; if not, `reason` says why.
-- policy_version: The version that the engine was to reach, or to hold.
-- rl_run_id: The RL run whose version it is; `run_id` if none is named.
-- source: Where the bytes came from: `trainer`, `relay` or `object store`; `audit` if weights that an engine held were
--     found to have changed, and no bytes came; `unknown` if the host's agent was killed before it recorded the sync,
--     and the next agent found the version in the engine.
CREATE OR REPLACE VIEW sync AS
SELECT
    writer, seq, event_id, run_id, provenance, event_time,
    ok, reason, device_id, engine_id, lease_id, trajectory_id, policy_version, base_version,
    coalesce(rl_run_id, run_id) AS rl_run_id, step,
    encoding, wire_bytes, dense_bytes, changed_elements, total_elements,
    encode_ns, fetch_ns, verify_ns, stage_ns, pause_ns, acknowledge_ns, total_ns, source, route, sha256
FROM event
WHERE kind = 'sync' AND reckonable('sync');
