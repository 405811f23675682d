-- One row for each reading of a device's mean power over [t0_ns, t1_ns).
--
-- source: How it was read: `nvml` or `rapl`.
CREATE OR REPLACE VIEW power AS
SELECT
    writer, seq, event_id, run_id, provenance, event.at,
    device_id, engine_id, lease_id, trajectory_id, policy_version,
    t0_ns, t1_ns, power_mw, source
FROM event
WHERE kind = 'power';
