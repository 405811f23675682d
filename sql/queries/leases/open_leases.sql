-- For the infra lead: which leases are open?
--
-- since (TIMESTAMP): only leases granted at or after this time, UTC.
-- until (TIMESTAMP): only leases granted before this time, UTC.
-- run_id (VARCHAR): only this run.
-- device_id (VARCHAR): only this device.
--
-- `open_ns` is the time from the grant to the run's newest event. A lease whose agent died stays open for at most a
-- minute after its expiry, by the writers' clocks: late segments of another host may show that it was renewed.
WITH newest AS (SELECT run_id, provenance, max(event.event_time) AS newest_at FROM event GROUP BY ALL)
SELECT
    provenance, run_id, lease_id, device_id, engine_id, step, granted_at, expires_at,
    1000 * (epoch_us(newest_at) - epoch_us(granted_at)) AS open_ns,
    kv_budget_last_bytes, renewals, frozen
FROM lease
JOIN newest USING (run_id, provenance)
WHERE closed_by IS NULL
  AND (getvariable('since') IS NULL OR granted_at >= getvariable('since')::TIMESTAMP)
    AND (getvariable('until') IS NULL OR granted_at < getvariable('until')::TIMESTAMP)
    AND (getvariable('run_id') IS NULL OR getvariable('run_id') IN (run_id, rl_run_id))
    AND (getvariable('device_id') IS NULL OR device_id = getvariable('device_id'))
ORDER BY granted_at, run_id, lease_id;
